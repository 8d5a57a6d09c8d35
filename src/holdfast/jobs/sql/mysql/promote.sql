-- Let scheduled jobs whose time has come be claimed. Rows: their ids.
SELECT id FROM holdfast_jobs FORCE INDEX (holdfast_jobs_due)
WHERE status = 'scheduled' AND run_at <= :now
ORDER BY run_at
LIMIT :limit
FOR UPDATE SKIP LOCKED;
UPDATE {{asked.sql}} SET job.status = 'ready' WHERE job.status = 'scheduled'
