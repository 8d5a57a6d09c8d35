-- Remove what has come to its end, in the transaction that records that end [FENCE-2]. Rows: the claims that were ours.
DELETE FROM holdfast_jobs AS job
USING unnest(:ids::bigint[], :attempts::integer[]) AS report (id, attempt)
WHERE job.id = report.id AND job.attempt = report.attempt AND job.locked_by = :worker
RETURNING job.id, job.attempt
