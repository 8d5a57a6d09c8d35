-- Give attempts back without counting a failure: a snooze, or a drain, which keeps its place [FENCE-2]. Rows: what was
-- ours.
SELECT report.id, report.attempt {{claims.sql}} WHERE job.cancel_reason IS NULL;
UPDATE holdfast_jobs AS job
SET status = CASE WHEN report.delay_seconds > 0 THEN 'scheduled' WHEN job.suspicions > 0 THEN 'suspect' ELSE 'ready' END,
    run_at = :now + report.delay_seconds seconds,
    locked_by = NULL,
    lease_until = NULL,
    last_error = COALESCE(report.reason, job.last_error)
FROM {{batch.sql}} AS report
WHERE job.id = report.id AND job.attempt = report.attempt AND job.locked_by = :worker
