-- Extend every lease that is still ours [FENCE-2]. Rows: what is still ours; what is missing must be stopped.
UPDATE holdfast_jobs AS job
SET lease_until = :now + job.lease_seconds * interval '1 second'
FROM unnest(:ids::bigint[], :attempts::integer[]) AS held (id, attempt)
WHERE job.id = held.id AND job.attempt = held.attempt AND job.locked_by = :worker
RETURNING job.id, job.attempt, job.cancel_reason
