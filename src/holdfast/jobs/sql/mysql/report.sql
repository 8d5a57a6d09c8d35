-- name: heartbeat
-- Extend every lease that is still ours [FENCE-2]. Rows: what is still ours; what is missing must be stopped.
SELECT job.id, job.attempt, job.cancel_reason FROM {{claims}} FOR UPDATE;
UPDATE holdfast_jobs AS job
SET job.lease_until = :now + job.lease_seconds seconds
WHERE job.id IN (:ids) AND (job.id, job.attempt) IN (:claims) AND job.locked_by = :worker

-- name: progress
-- Extend leases and tell how far the work is [FENCE-2]. Rows: what is still ours.
SELECT job.id, job.attempt FROM {{claims}} FOR UPDATE;
UPDATE {{claims}}
SET job.lease_until = :now + job.lease_seconds seconds, job.progress = report.progress

-- name: record_begin
-- Record that attempts begin (:sign is 1), that they are not to be charged any more (-1), or that nobody will say when they
-- begin (0) [FENCE-2] [SUSPECT-1].
-- Rows: what is still ours; what is missing must not begin.
SELECT job.id, job.attempt FROM {{claims}} FOR UPDATE;
UPDATE holdfast_jobs AS job
SET job.begun_attempt = :sign * job.attempt
WHERE job.id IN (:ids) AND (job.id, job.attempt) IN (:claims) AND job.locked_by = :worker

-- name: hold
-- Look whether an attempt is still ours [FENCE-2]. No lock, which would stop the beats. Rows: one or none.
SELECT NULL FROM holdfast_jobs
WHERE id = :id AND attempt = :attempt AND locked_by = :worker

-- name: complete
-- End jobs that succeeded: they become history in the same transaction [FENCE-2]. Rows: the claims that were ours.
SELECT report.id, report.attempt FROM {{claims}} FOR UPDATE;
{{success_history}};
DELETE job FROM {{claims}}

-- name: complete_kept
-- End jobs that succeeded and whose key stays taken for a while: the row stays as the holder of the key [FENCE-2].
-- Rows: the claims that were ours.
SELECT report.id, report.attempt FROM {{claims}} FOR UPDATE;
{{success_history}};
UPDATE {{claims}}
SET job.status = 'done', job.locked_by = NULL, job.lease_until = NULL, job.run_at = :now, job.payload = ''

-- name: drop
-- Remove what has come to its end, in the transaction that records that end [FENCE-2]. Rows: the claims that were ours.
SELECT report.id, report.attempt FROM {{claims}} FOR UPDATE;
DELETE job FROM {{claims}}

-- name: fail
-- End attempts that failed: retry or dead letter [FENCE-2] [RETRY-1].
-- Rows: the attempts that were ours, and what becomes of them.
SELECT report.id, report.attempt,
    CASE
        WHEN job.cancel_reason IS NOT NULL THEN 'cancelled'
        WHEN report.is_final THEN 'dead'
        WHEN {{is_last_attempt}} THEN 'dead'
        ELSE 'scheduled'
    END AS next_status,
    COALESCE(report.retry_seconds, {{backoff}}) AS delay_seconds
FROM {{claims}}
FOR UPDATE;
{{retry_or_dead_letter}}

-- name: put_back
-- Give attempts back without counting a failure: a snooze, or a drain, which keeps its place [FENCE-2]. Not those that were
-- cancelled, nor what may run once and has begun, unless its handler snoozes [ONCE-1], nor what was for another version of its
-- handler :most_misfits times before. Rows: what was ours.
SELECT report.id, report.attempt FROM {{claims}}
WHERE job.cancel_reason IS NULL
    AND NOT (COALESCE(job.max_attempts, 0) = 1 AND job.begun_attempt = job.attempt AND report.delay_seconds = 0)
    AND NOT (report.is_misfit = 1 AND job.misfits >= :most_misfits)
FOR UPDATE;
UPDATE {{claims}}
SET job.status = CASE WHEN report.delay_seconds > 0 THEN 'scheduled' WHEN job.suspicions > 0 THEN 'suspect' ELSE 'ready' END,
    job.run_at = :now + report.delay_seconds seconds,
    job.ready_at = CASE WHEN report.delay_seconds > 0 OR job.suspicions > 0 THEN :now ELSE job.ready_at END,
    job.locked_by = NULL,
    job.lease_until = NULL,
    job.last_error = COALESCE(report.reason, job.last_error),
    job.misfits = CASE WHEN report.is_misfit = 1 THEN job.misfits + 1 WHEN report.delay_seconds > 0 THEN 0 ELSE job.misfits END,
    job.undone = CASE WHEN report.is_undone = 1 THEN job.undone + 1 WHEN report.delay_seconds > 0 THEN 0 ELSE job.undone END

-- name: end_cancelled
-- End running jobs that were asked to stop and did [FENCE-2]. Rows: what was ours.
SELECT report.id, report.attempt FROM {{claims}} WHERE job.cancel_reason IS NOT NULL FOR UPDATE;
INSERT INTO holdfast_history
    (engine, instance_id, operation, status, duration_ms, input, error, created_at, correlation_id, item_id, attempt,
     worker)
SELECT CONCAT('jobs:', job.topic), COALESCE(job.instance_id, 'publisher'), job.operation, 'Failed',
    report.duration_ms, job.payload, CONCAT('cancelled: ', job.cancel_reason),
    :now, COALESCE(job.correlation_id, CONCAT('job-', job.id)),
    CONCAT('job-', job.id), job.attempt, :worker
FROM {{claims}};
UPDATE {{claims}}
SET job.status = 'cancelled', job.locked_by = NULL, job.lease_until = NULL, job.held_key = NULL,
    job.run_at = :now
