-- Take back what a lost worker held and nobody knows to have begun: uncharged, and marked, so that it runs under test
-- [SUSPECT-1]. Rows: the claims, and the status they get.
SELECT job.id, job.attempt,
    CASE WHEN job.suspicions = 0 AND {{is_innocent.sql}} THEN 'ready' ELSE 'suspect' END AS next_status,
    job.suspicions + CASE WHEN {{is_innocent.sql}} THEN 0 ELSE 1 END AS suspicions
FROM holdfast_jobs AS job
WHERE job.status = 'running' AND job.lease_until < :now AND NOT {{is_charged.sql}} AND NOT {{is_server_unknown.sql}}
ORDER BY job.lease_until
LIMIT :limit;
UPDATE holdfast_jobs AS job
SET status = report.next_status,
    suspicions = report.suspicions,
    run_at = :now,
    ready_at = :now,
    locked_by = NULL,
    lease_until = NULL,
    last_error = 'the worker that held it was lost'
FROM {{batch.sql}} AS report
WHERE job.id = report.id AND job.attempt = report.attempt AND job.status = 'running'
