-- Extend every lease that is still ours [FENCE-2]. Rows: what is still ours; what is missing must be stopped.
SELECT job.id, job.attempt, job.cancel_reason {{claims.sql}};
UPDATE holdfast_jobs AS job
SET lease_until = :now + job.lease_seconds seconds
FROM {{batch.sql}} AS report
WHERE job.id = report.id AND job.attempt = report.attempt AND job.locked_by = :worker
