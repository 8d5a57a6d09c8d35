-- Extend every lease that is still ours [FENCE-2]. Rows: what is still ours; what is missing must be stopped.
SELECT job.id, job.attempt, job.cancel_reason FROM {{claims.sql}} FOR UPDATE;
UPDATE holdfast_jobs AS job
SET job.lease_until = :now + job.lease_seconds seconds
WHERE job.id IN (:ids) AND (job.id, job.attempt) IN (:claims) AND job.locked_by = :worker
