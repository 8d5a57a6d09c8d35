-- Forget ended jobs: done ones when their window has passed, others that are older than :seconds, dead ones of these
-- once no dead letter of theirs is open. The history has its own retention. Rows: how many.
DELETE FROM holdfast_jobs
WHERE id IN (
    SELECT id FROM holdfast_jobs AS job
    WHERE status IN ('dead', 'cancelled', 'done')
        AND NOT (status = 'dead' AND EXISTS (
            SELECT FROM holdfast_dead_letters AS letter
            WHERE letter.item_id = 'job-' || job.id AND letter.status = 'Pending'))
        AND COALESCE(run_at, created_at)
            + CASE WHEN status = 'done' THEN COALESCE(unique_seconds, 0) ELSE :seconds END * interval '1 second' < :now
    ORDER BY id
    LIMIT :limit
    FOR UPDATE SKIP LOCKED
)
RETURNING id
