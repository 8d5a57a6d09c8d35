-- Remove what has come to its end, in the transaction that records that end [FENCE-2]. Rows: the claims that were ours.
SELECT report.id, report.attempt {{claims.sql}};
DELETE FROM holdfast_jobs AS job
WHERE job.id IN (SELECT report.id FROM {{batch.sql}} AS report) AND job.locked_by = :worker
    AND (job.id, job.attempt) IN (SELECT report.id, report.attempt FROM {{batch.sql}} AS report)
