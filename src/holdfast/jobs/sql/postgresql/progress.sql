-- Extend leases and tell how far the work is [FENCE-2]. Rows: what is still ours.
UPDATE holdfast_jobs AS job
SET lease_until = :now + job.lease_seconds * interval '1 second', progress = report.progress
FROM unnest(:ids::bigint[], :attempts::integer[], :progress::text[]) AS report (id, attempt, progress)
WHERE job.id = report.id AND job.attempt = report.attempt AND job.locked_by = :worker
RETURNING job.id, job.attempt
