-- Let scheduled jobs whose time has come be claimed: they became ready when they were due. Rows: their ids.
SELECT id FROM holdfast_jobs
WHERE status = 'scheduled' AND run_at <= :now
ORDER BY run_at
LIMIT :limit;
UPDATE holdfast_jobs AS job SET status = 'ready', ready_at = job.run_at
FROM {{batch.sql}} AS due
WHERE job.id = due.id AND job.status = 'scheduled'
