-- What was decided for the attempts of the batch is done: the job, its history, its dead letter [FENCE-2] [RETRY-1].
-- The caller has just seen that the claims are good, in this transaction.
UPDATE holdfast_jobs AS job
SET status = report.next_status,
    locked_by = NULL,
    lease_until = NULL,
    failures = job.failures + CASE WHEN report.is_final OR report.next_status = 'cancelled' THEN 0 ELSE 1 END,
    run_at = CASE WHEN report.next_status IN ('scheduled', 'suspect') THEN :now + report.delay_seconds seconds ELSE :now END,
    held_key = CASE WHEN report.next_status IN ('scheduled', 'suspect') THEN job.held_key END,
    first_failed_at = COALESCE(job.first_failed_at, :now),
    last_failed_at = :now,
    last_error = report.error
FROM {{batch.sql}} AS report
WHERE job.id = report.id AND job.attempt = report.attempt AND job.status = 'running';
INSERT INTO holdfast_history
    (engine, instance_id, operation, status, duration_ms, input, error, created_at, correlation_id, item_id, attempt)
SELECT 'jobs:' || job.topic, COALESCE(job.instance_id, 'publisher'), job.operation, 'Failed',
    report.duration_ms, job.payload,
    CASE WHEN job.status = 'cancelled' THEN 'cancelled: ' || job.cancel_reason ELSE report.error END,
    :now, COALESCE(job.correlation_id, 'job-' || job.id), 'job-' || job.id, job.attempt
{{asked.sql}}
-- The history of an engine's message is the engine's own.
WHERE job.topic NOT LIKE 'engine.%';
INSERT INTO holdfast_dead_letters
    (engine, row_key, instance_id, original_queue, original_message, error_message, dequeue_count,
     first_failure_at, last_failure_at, status, correlation_id, item_id)
SELECT 'jobs:' || job.topic, {{letter_key.sql}},
    COALESCE(job.instance_id, 'publisher'), job.topic, job.payload, report.error, job.attempt,
    job.first_failed_at, job.last_failed_at, 'Pending', COALESCE(job.correlation_id, 'job-' || job.id), 'job-' || job.id
{{asked.sql}}
WHERE job.status = 'dead'
