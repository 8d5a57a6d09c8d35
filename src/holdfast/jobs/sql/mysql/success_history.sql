-- Tell the history of successes [FENCE-2].
INSERT INTO holdfast_history
    (engine, instance_id, operation, status, duration_ms, input, output, created_at, correlation_id, item_id, attempt)
SELECT CONCAT('jobs:', job.topic), COALESCE(job.instance_id, 'publisher'), job.operation, 'Succeeded',
    report.duration_ms, job.payload, report.output, :now, COALESCE(job.correlation_id, CONCAT('job-', job.id)),
    CONCAT('job-', job.id), job.attempt
FROM {{claims.sql}}
