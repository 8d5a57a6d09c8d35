-- Record that attempts begin (:sign is 1), or that they are not to be charged any more (-1) [FENCE-2] [SUSPECT-1].
-- Rows: what is still ours; what is missing must not begin.
UPDATE holdfast_jobs AS job
SET begun_attempt = :sign * job.attempt
FROM unnest(:ids::bigint[], :attempts::integer[]) AS held (id, attempt)
WHERE job.id = held.id AND job.attempt = held.attempt AND job.locked_by = :worker
RETURNING job.id, job.attempt
