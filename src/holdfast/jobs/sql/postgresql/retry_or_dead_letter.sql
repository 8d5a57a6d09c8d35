decided AS (
    SELECT report.*,
        CASE
            WHEN report.cancel_reason IS NOT NULL THEN 'cancelled'
            WHEN report.is_final THEN 'dead'
            WHEN report.max_attempts IS NOT NULL AND report.failures + 1 >= report.max_attempts THEN 'dead'
            ELSE report.retry_status
        END AS next_status,
        COALESCE(
            report.retry_seconds,
            LEAST(report.retry_max_seconds, report.retry_base_seconds * power(2.0, LEAST(report.failures, 60)))
                * (0.75 + random() * 0.5)
        ) AS delay_seconds
    FROM report
),
ended AS (
    UPDATE holdfast_jobs AS job
    SET status = decided.next_status,
        locked_by = NULL,
        lease_until = NULL,
        failures = job.failures + CASE WHEN decided.is_final OR decided.next_status = 'cancelled' THEN 0 ELSE 1 END,
        run_at = CASE WHEN decided.next_status IN ('scheduled', 'suspect')
            THEN :now + decided.delay_seconds * interval '1 second' ELSE :now END,
        held_key = CASE WHEN decided.next_status IN ('scheduled', 'suspect') THEN job.held_key END,
        first_failed_at = COALESCE(job.first_failed_at, :now),
        last_failed_at = :now,
        last_error = decided.error
    FROM decided
    WHERE job.id = decided.id AND job.attempt = decided.attempt AND job.status = 'running'
    RETURNING job.id, job.attempt, job.topic, job.operation, job.payload, job.status, job.correlation_id, job.instance_id,
        job.first_failed_at, job.last_failed_at, decided.error, decided.duration_ms, job.run_at, job.cancel_reason
),
told AS (
    INSERT INTO holdfast_history
        (engine, instance_id, operation, status, duration_ms, input, error, created_at, correlation_id, item_id, attempt)
    SELECT 'jobs:' || topic, COALESCE(instance_id, 'publisher'), operation, 'Failed', GREATEST(0, duration_ms), payload,
        CASE WHEN status = 'cancelled' THEN 'cancelled: ' || cancel_reason ELSE error END,
        :now, COALESCE(correlation_id, 'job-' || id), 'job-' || id, attempt
    FROM ended
    -- The history of an engine's message is the engine's own.
    WHERE topic NOT LIKE 'engine.%'
),
buried AS (
    INSERT INTO holdfast_dead_letters
        (engine, row_key, instance_id, original_queue, original_message, error_message, dequeue_count,
         first_failure_at, last_failure_at, status, correlation_id, item_id)
    SELECT 'jobs:' || topic, 'job-' || id || '-' || to_char(last_failed_at AT TIME ZONE 'UTC', 'YYYYMMDD"T"HH24MISSUS"Z"'),
        COALESCE(instance_id, 'publisher'), topic, payload, error, attempt,
        first_failed_at, last_failed_at, 'Pending', COALESCE(correlation_id, 'job-' || id), 'job-' || id
    FROM ended
    WHERE status = 'dead'
)
SELECT id, attempt, status FROM ended
