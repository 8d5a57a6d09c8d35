-- End jobs that succeeded and whose key stays taken for a while: the row stays as the holder of the key [FENCE-2].
-- Rows: the claims that were ours.
SELECT report.id, report.attempt {{claims.sql}};
{{success_history.sql}};
UPDATE holdfast_jobs AS job
SET status = 'done', locked_by = NULL, lease_until = NULL, run_at = :now, payload = ''
FROM {{batch.sql}} AS report
WHERE job.id = report.id AND job.attempt = report.attempt AND job.locked_by = :worker
