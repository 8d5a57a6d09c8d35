-- Let scheduled jobs whose time has come be claimed. Rows: their ids.
SELECT id FROM holdfast_jobs FORCE INDEX (holdfast_jobs_due)
WHERE status = 'scheduled' AND run_at <= :now
ORDER BY run_at
LIMIT :limit
FOR UPDATE SKIP LOCKED;
UPDATE holdfast_jobs AS job SET job.status = 'ready' WHERE job.id IN (:ids) AND job.status = 'scheduled'
