-- Forget ended jobs that are older than :seconds; the history has its own retention. Rows: their ids.
SELECT id FROM holdfast_jobs
WHERE status IN ('cancelled', 'done')
    AND (julianday(:now) - julianday(COALESCE(run_at, created_at))) * 86400.0 > COALESCE(unique_seconds, 0) + :seconds
ORDER BY id
LIMIT :limit;
DELETE FROM holdfast_jobs WHERE id IN (SELECT id FROM {{batch.sql}}) AND status IN ('cancelled', 'done')
