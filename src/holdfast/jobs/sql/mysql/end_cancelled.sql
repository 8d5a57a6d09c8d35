-- End running jobs that were asked to stop and did [FENCE-2]. Rows: what was ours.
SELECT report.id, report.attempt FROM {{claims.sql}} WHERE job.cancel_reason IS NOT NULL FOR UPDATE;
INSERT INTO holdfast_history
    (engine, instance_id, operation, status, duration_ms, input, error, created_at, correlation_id, item_id, attempt)
SELECT CONCAT('jobs:', job.topic), COALESCE(job.instance_id, 'publisher'), job.operation, 'Failed',
    report.duration_ms, job.payload, CONCAT('cancelled: ', job.cancel_reason),
    :now, COALESCE(job.correlation_id, CONCAT('job-', job.id)),
    CONCAT('job-', job.id), job.attempt
FROM {{claims.sql}};
UPDATE {{claims.sql}}
SET job.status = 'cancelled', job.locked_by = NULL, job.lease_until = NULL, job.held_key = NULL,
    job.run_at = :now
