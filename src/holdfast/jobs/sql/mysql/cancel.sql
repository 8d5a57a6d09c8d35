-- Cancel waiting jobs at once, ask the workers of running ones to stop [FENCE-2].
-- Rows: what is changed, and the status it gets.
SELECT job.id, CASE WHEN job.status = 'running' THEN 'running' ELSE 'cancelled' END AS next_status
FROM {{asked.sql}}
WHERE job.status IN ('ready', 'scheduled', 'suspect', 'running')
FOR UPDATE;
UPDATE {{asked.sql}}
SET job.status = report.next_status,
    job.held_key = CASE WHEN report.next_status = 'running' THEN job.held_key END,
    job.run_at = CASE WHEN report.next_status = 'running' THEN job.run_at ELSE :now END,
    job.cancel_reason = :reason;
INSERT INTO holdfast_history
    (engine, instance_id, operation, status, duration_ms, input, error, created_at, correlation_id, item_id, attempt)
SELECT CONCAT('jobs:', job.topic), COALESCE(job.instance_id, 'publisher'), job.operation, 'Failed', 0, job.payload,
    CONCAT('cancelled: ', job.cancel_reason), :now, COALESCE(job.correlation_id, CONCAT('job-', job.id)),
    CONCAT('job-', job.id), job.attempt
FROM {{asked.sql}}
WHERE job.status = 'cancelled'
