-- Forget ended jobs that are older than :seconds, dead ones once no dead letter of theirs is open; the history has its own
-- retention. Rows: how many.
DELETE FROM holdfast_jobs
WHERE id IN (
    SELECT id FROM holdfast_jobs AS job
    WHERE status IN ('dead', 'cancelled', 'done')
        AND NOT (status = 'dead' AND EXISTS (
            SELECT FROM holdfast_dead_letters AS letter
            WHERE letter.item_id = 'job-' || job.id AND letter.status = 'Pending'))
        AND COALESCE(run_at, created_at) + COALESCE(unique_seconds, 0) * interval '1 second' < :now - :seconds * interval '1 second'
    ORDER BY id
    LIMIT :limit
)
RETURNING id
