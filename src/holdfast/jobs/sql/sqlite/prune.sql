-- Forget ended jobs: done ones when their window has passed, others that are older than :seconds, dead ones of these
-- once no dead letter of theirs is open. The history has its own retention. Rows: their ids.
SELECT id FROM holdfast_jobs AS job
WHERE status IN ('dead', 'cancelled', 'done')
    AND NOT (status = 'dead' AND EXISTS (
        SELECT 1 FROM holdfast_dead_letters AS letter
        WHERE letter.item_id = 'job-' || job.id AND letter.status = 'Pending'))
    AND (julianday(:now) - julianday(COALESCE(run_at, created_at))) * 86400.0
        > CASE WHEN status = 'done' THEN COALESCE(unique_seconds, 0) ELSE :seconds END
ORDER BY id
LIMIT :limit;
DELETE FROM holdfast_jobs WHERE id IN (SELECT id FROM {{batch.sql}}) AND status IN ('dead', 'cancelled', 'done')
