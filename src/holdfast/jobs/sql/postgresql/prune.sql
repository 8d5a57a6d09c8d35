-- Forget ended jobs that are older than :seconds; the history has its own retention. Rows: how many.
DELETE FROM holdfast_jobs
WHERE id IN (
    SELECT id FROM holdfast_jobs
    WHERE status IN ('cancelled', 'done')
        AND COALESCE(run_at, created_at) + COALESCE(unique_seconds, 0) * interval '1 second' < :now - :seconds * interval '1 second'
    ORDER BY id
    LIMIT :limit
)
RETURNING id
