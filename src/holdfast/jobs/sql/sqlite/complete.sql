-- End jobs that succeeded: they become history in the same transaction [FENCE-2]. Rows: the claims that were ours.
SELECT report.id, report.attempt {{claims.sql}};
{{success_history.sql}};
DELETE FROM holdfast_jobs AS job
WHERE job.id IN (SELECT report.id FROM {{batch.sql}} AS report) AND job.locked_by = :worker
    AND (job.id, job.attempt) IN (SELECT report.id, report.attempt FROM {{batch.sql}} AS report)
