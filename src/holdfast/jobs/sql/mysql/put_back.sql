-- Give attempts back without counting a failure: a snooze, or a drain, which keeps its place [FENCE-2]. Rows: what was
-- ours.
SELECT report.id, report.attempt FROM {{claims.sql}} WHERE job.cancel_reason IS NULL FOR UPDATE;
UPDATE {{claims.sql}}
SET job.status = CASE WHEN report.delay_seconds > 0 THEN 'scheduled' WHEN job.suspicions > 0 THEN 'suspect' ELSE 'ready' END,
    job.run_at = :now + report.delay_seconds seconds,
    job.locked_by = NULL,
    job.lease_until = NULL,
    job.last_error = COALESCE(report.reason, job.last_error)
