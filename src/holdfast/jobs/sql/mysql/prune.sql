-- Forget ended jobs that are older than :seconds; the history has its own retention. Rows: their ids.
SELECT id FROM holdfast_jobs FORCE INDEX (holdfast_jobs_due)
WHERE status IN ('cancelled', 'done')
    AND TIMESTAMPDIFF(MICROSECOND, COALESCE(run_at, created_at), :now) / 1e6 > COALESCE(unique_seconds, 0) + :seconds
LIMIT :limit
FOR UPDATE SKIP LOCKED;
DELETE job FROM {{asked.sql}} WHERE job.status IN ('cancelled', 'done')
