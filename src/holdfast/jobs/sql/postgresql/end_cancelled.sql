-- End running jobs that were asked to stop and did [FENCE-2]. Rows: what was ours.
WITH ended AS (
    UPDATE holdfast_jobs AS job
    SET status = 'cancelled', locked_by = NULL, lease_until = NULL, held_key = NULL, run_at = :now
    FROM unnest(:ids::bigint[], :attempts::integer[], :durations::bigint[]) AS report (id, attempt, duration_ms)
    WHERE job.id = report.id AND job.attempt = report.attempt AND job.locked_by = :worker AND job.cancel_reason IS NOT NULL
    RETURNING job.*, report.duration_ms
),
told AS (
    INSERT INTO holdfast_history
        (engine, instance_id, operation, status, duration_ms, input, error, created_at, correlation_id, item_id, attempt)
    SELECT 'jobs:' || topic, COALESCE(instance_id, 'publisher'), operation, 'Failed', duration_ms, payload,
        'cancelled: ' || cancel_reason, :now, COALESCE(correlation_id, 'job-' || id), 'job-' || id, attempt
    FROM ended
)
SELECT id, attempt FROM ended
