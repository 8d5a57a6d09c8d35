-- Let scheduled jobs whose time has come be claimed: they became ready when they were due. Rows: how many.
WITH due AS (
    SELECT id FROM holdfast_jobs
    WHERE status = 'scheduled' AND run_at <= :now
    ORDER BY run_at
    LIMIT :limit
    FOR UPDATE SKIP LOCKED
)
UPDATE holdfast_jobs AS job SET status = 'ready', ready_at = job.run_at FROM due WHERE job.id = due.id
RETURNING job.id
