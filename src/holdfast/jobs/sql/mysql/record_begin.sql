-- Record that attempts begin (:sign is 1), or that they are not to be charged any more (-1) [FENCE-2] [SUSPECT-1].
-- Rows: what is still ours; what is missing must not begin.
SELECT job.id, job.attempt FROM {{claims.sql}} FOR UPDATE;
UPDATE holdfast_jobs AS job
SET job.begun_attempt = :sign * job.attempt
WHERE job.id IN (:ids) AND (job.id, job.attempt) IN (:claims) AND job.locked_by = :worker
