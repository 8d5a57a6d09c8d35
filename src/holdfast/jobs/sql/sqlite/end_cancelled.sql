-- End running jobs that were asked to stop and did [FENCE-2]. Rows: what was ours.
SELECT report.id, report.attempt {{claims.sql}} WHERE job.cancel_reason IS NOT NULL;
INSERT INTO holdfast_history
    (engine, instance_id, operation, status, duration_ms, input, error, created_at, correlation_id, item_id, attempt)
SELECT 'jobs:' || job.topic, COALESCE(job.instance_id, 'publisher'), job.operation, 'Failed',
    report.duration_ms, job.payload, 'cancelled: ' || job.cancel_reason,
    :now, COALESCE(job.correlation_id, 'job-' || job.id), 'job-' || job.id, job.attempt
{{claims.sql}};
UPDATE holdfast_jobs AS job
SET status = 'cancelled', locked_by = NULL, lease_until = NULL, held_key = NULL, run_at = :now
FROM {{batch.sql}} AS report
WHERE job.id = report.id AND job.attempt = report.attempt AND job.locked_by = :worker
