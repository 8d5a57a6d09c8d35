-- What was decided for the attempts of the batch is done: the job, its history, its dead letter [FENCE-2] [RETRY-1].
-- The caller has just seen that the claims are good, in this transaction, and holds the locks.
UPDATE {{asked.sql}}
SET job.status = report.next_status,
    job.locked_by = NULL,
    job.lease_until = NULL,
    job.failures = job.failures + CASE WHEN report.is_final OR report.next_status = 'cancelled' THEN 0 ELSE 1 END,
    job.run_at = CASE WHEN report.next_status IN ('scheduled', 'suspect') THEN :now + report.delay_seconds seconds ELSE :now END,
    job.held_key = CASE WHEN report.next_status IN ('scheduled', 'suspect') THEN job.held_key END,
    job.first_failed_at = COALESCE(job.first_failed_at, :now),
    job.last_failed_at = :now,
    job.last_error = report.error
WHERE job.attempt = report.attempt AND job.status = 'running';
INSERT INTO holdfast_history
    (engine, instance_id, operation, status, duration_ms, input, error, created_at, correlation_id, item_id, attempt)
SELECT CONCAT('jobs:', job.topic), COALESCE(job.instance_id, 'publisher'), job.operation, 'Failed', report.duration_ms,
    job.payload, CASE WHEN job.status = 'cancelled' THEN CONCAT('cancelled: ', job.cancel_reason) ELSE report.error END,
    :now, COALESCE(job.correlation_id, CONCAT('job-', job.id)),
    CONCAT('job-', job.id), job.attempt
FROM {{asked.sql}}
-- The history of an engine's message is the engine's own.
WHERE job.topic NOT LIKE 'engine.%';
INSERT INTO holdfast_dead_letters
    (engine, row_key, instance_id, original_queue, original_message, error_message, dequeue_count,
     first_failure_at, last_failure_at, status, correlation_id, item_id)
SELECT CONCAT('jobs:', job.topic), {{letter_key.sql}},
    COALESCE(job.instance_id, 'publisher'), job.topic, job.payload, report.error, job.attempt,
    job.first_failed_at, job.last_failed_at, 'Pending', COALESCE(job.correlation_id, CONCAT('job-', job.id)),
    CONCAT('job-', job.id)
FROM {{asked.sql}}
WHERE job.status = 'dead'
