-- Give attempts back without counting a failure: a snooze, or a drain, which keeps its place [FENCE-2]. Rows: what was
-- ours.
UPDATE holdfast_jobs AS job
SET status = CASE WHEN report.seconds > 0 THEN 'scheduled' WHEN job.suspicions > 0 THEN 'suspect' ELSE 'ready' END,
    run_at = :now + report.seconds * interval '1 second',
    locked_by = NULL,
    lease_until = NULL,
    last_error = COALESCE(report.reason, job.last_error)
FROM unnest(:ids::bigint[], :attempts::integer[], :seconds::double precision[], :reasons::text[])
    AS report (id, attempt, seconds, reason)
WHERE job.id = report.id AND job.attempt = report.attempt AND job.locked_by = :worker
    AND job.cancel_reason IS NULL
RETURNING job.id, job.attempt
