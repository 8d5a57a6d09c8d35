-- Let scheduled jobs whose time has come be claimed: they became ready when they were due. Rows: their ids.
SELECT id FROM holdfast_jobs FORCE INDEX (holdfast_jobs_due)
WHERE status = 'scheduled' AND run_at <= :now
ORDER BY run_at
LIMIT :limit
FOR UPDATE SKIP LOCKED;
UPDATE holdfast_jobs AS job SET job.status = 'ready', job.ready_at = job.run_at
WHERE job.id IN (:ids) AND job.status = 'scheduled'
