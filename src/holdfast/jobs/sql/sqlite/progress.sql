-- Extend leases and tell how far the work is [FENCE-2]. Rows: what is still ours.
SELECT job.id, job.attempt {{claims.sql}};
UPDATE holdfast_jobs AS job
SET lease_until = :now + job.lease_seconds seconds, progress = report.progress
FROM {{batch.sql}} AS report
WHERE job.id = report.id AND job.attempt = report.attempt AND job.locked_by = :worker
