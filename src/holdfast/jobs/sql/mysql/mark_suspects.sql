-- Take back what a lost worker held and nobody knows to have begun: uncharged, and marked, so that it runs under test
-- [SUSPECT-1]. Rows: the claims, and the status they get.
SELECT job.id, job.attempt,
    CASE WHEN job.suspicions = 0 AND {{is_innocent.sql}} THEN 'ready' ELSE 'suspect' END AS next_status,
    job.suspicions + CASE WHEN {{is_innocent.sql}} THEN 0 ELSE 1 END AS suspicions
FROM holdfast_jobs AS job FORCE INDEX (holdfast_jobs_lease)
WHERE job.lease_until < :now AND NOT {{is_charged.sql}} AND NOT {{is_server_unknown.sql}}
ORDER BY job.lease_until
LIMIT :limit
FOR UPDATE SKIP LOCKED;
UPDATE {{asked.sql}}
SET job.status = report.next_status,
    job.suspicions = report.suspicions,
    job.run_at = :now,
    job.ready_at = :now,
    job.locked_by = NULL,
    job.lease_until = NULL,
    job.last_error = 'the worker that held it was lost'
WHERE job.attempt = report.attempt AND job.status = 'running'
