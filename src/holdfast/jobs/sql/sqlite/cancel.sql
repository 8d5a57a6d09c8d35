-- Cancel waiting jobs at once, ask the workers of running ones to stop [FENCE-2].
-- Rows: what is changed, and the status it gets.
SELECT job.id, CASE WHEN job.status = 'running' THEN 'running' ELSE 'cancelled' END AS next_status
{{asked.sql}}
WHERE job.status IN ('ready', 'scheduled', 'suspect', 'running');
UPDATE holdfast_jobs AS job
SET status = report.next_status,
    held_key = CASE WHEN report.next_status = 'running' THEN job.held_key END,
    run_at = CASE WHEN report.next_status = 'running' THEN job.run_at ELSE :now END,
    cancel_reason = :reason
FROM {{batch.sql}} AS report
WHERE job.id = report.id;
INSERT INTO holdfast_history
    (engine, instance_id, operation, status, duration_ms, input, error, created_at, correlation_id, item_id, attempt)
SELECT 'jobs:' || job.topic, COALESCE(job.instance_id, 'publisher'), job.operation, 'Failed', 0, job.payload,
    'cancelled: ' || job.cancel_reason,
    :now, COALESCE(job.correlation_id, 'job-' || job.id), 'job-' || job.id, job.attempt
{{asked.sql}}
WHERE job.status = 'cancelled'
