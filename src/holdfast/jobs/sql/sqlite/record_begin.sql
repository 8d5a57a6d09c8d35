-- Record that attempts begin (:sign is 1), or that they are not to be charged any more (-1) [FENCE-2] [SUSPECT-1].
-- Rows: what is still ours; what is missing must not begin.
SELECT job.id, job.attempt {{claims.sql}};
UPDATE holdfast_jobs AS job
SET begun_attempt = :sign * job.attempt
FROM {{batch.sql}} AS report
WHERE job.id = report.id AND job.attempt = report.attempt AND job.locked_by = :worker
