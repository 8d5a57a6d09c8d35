-- End jobs that succeeded and whose key stays taken for a while: the row stays as the holder of the key [FENCE-2].
-- Rows: the claims that were ours.
SELECT report.id, report.attempt FROM {{claims.sql}} FOR UPDATE;
{{success_history.sql}};
UPDATE {{claims.sql}}
SET job.status = 'done', job.locked_by = NULL, job.lease_until = NULL, job.run_at = :now, job.payload = ''
