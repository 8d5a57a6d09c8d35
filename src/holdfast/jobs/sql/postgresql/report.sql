-- name: heartbeat
-- Extend every lease that is still ours [FENCE-2]. Rows: what is still ours; what is missing must be stopped.
UPDATE holdfast_jobs AS job
SET lease_until = :now + job.lease_seconds * interval '1 second'
FROM unnest(:ids::bigint[], :attempts::integer[]) AS held (id, attempt)
WHERE job.id = held.id AND job.attempt = held.attempt AND {{is_ours}}
RETURNING job.id, job.attempt, job.cancel_reason

-- name: progress
-- Extend leases and tell how far the work is [FENCE-2]. Rows: what is still ours.
UPDATE holdfast_jobs AS job
SET lease_until = :now + job.lease_seconds * interval '1 second', progress = report.progress
FROM unnest(:ids::bigint[], :attempts::integer[], :progress::text[]) AS report (id, attempt, progress)
WHERE job.id = report.id AND job.attempt = report.attempt AND {{is_ours}}
RETURNING job.id, job.attempt

-- name: record_begin
-- Record that attempts begin (:sign is 1), that they are not to be charged any more (-1), or that nobody will say when they
-- begin (0) [FENCE-2] [SUSPECT-1].
-- Rows: what is still ours; what is missing must not begin.
UPDATE holdfast_jobs AS job
SET begun_attempt = :sign * job.attempt
FROM unnest(:ids::bigint[], :attempts::integer[]) AS held (id, attempt)
WHERE job.id = held.id AND job.attempt = held.attempt AND {{is_ours}}
RETURNING job.id, job.attempt

-- name: hold
-- Look whether an attempt is still ours, and keep everybody from taking it while this transaction is open [FENCE-2].
-- Beats, progress and the wish to cancel go on: they change no key. Rows: one with the transaction's id, or none.
SELECT pg_current_xact_id()::text FROM holdfast_jobs
WHERE id = :id AND attempt = :attempt AND locked_by = :worker
FOR KEY SHARE

-- name: complete
-- End jobs that succeeded: they become history in the same statement [FENCE-2]. Rows: the ids that were ours.
-- The status is left out of the guard on purpose: with stale statistics it would lead the planner to the lease index.
WITH done AS (
    DELETE FROM holdfast_jobs AS job
    USING unnest(:ids::bigint[], :attempts::integer[], :durations::bigint[], :outputs::text[])
        AS report (id, attempt, duration_ms, output)
    WHERE job.id = report.id AND job.attempt = report.attempt AND {{is_ours}}
    RETURNING job.id, job.topic, job.operation, job.payload, job.correlation_id, job.instance_id, job.attempt,
        report.duration_ms, report.output
),
told AS (
    INSERT INTO holdfast_history
        (engine, instance_id, operation, status, duration_ms, input, output, created_at, correlation_id, item_id, attempt,
         worker)
    SELECT 'jobs:' || topic, COALESCE(instance_id, 'publisher'), operation, 'Succeeded', duration_ms, payload, output,
        :now, COALESCE(correlation_id, 'job-' || id), 'job-' || id, attempt, :worker
    FROM done
)
SELECT id, attempt FROM done

-- name: complete_kept
-- End jobs that succeeded and whose key stays taken for a while: the row stays as the holder of the key [FENCE-2].
WITH done AS (
    UPDATE holdfast_jobs AS job
    SET status = 'done', locked_by = NULL, lease_until = NULL, run_at = :now, payload = ''
    FROM unnest(:ids::bigint[], :attempts::integer[], :durations::bigint[], :outputs::text[])
        AS report (id, attempt, duration_ms, output),
        holdfast_jobs AS was
    WHERE job.id = report.id AND job.attempt = report.attempt AND {{is_ours}} AND was.id = job.id
    RETURNING job.id, job.topic, job.operation, was.payload, job.correlation_id, job.instance_id, job.attempt,
        report.duration_ms, report.output
),
told AS (
    INSERT INTO holdfast_history
        (engine, instance_id, operation, status, duration_ms, input, output, created_at, correlation_id, item_id, attempt,
         worker)
    SELECT 'jobs:' || topic, COALESCE(instance_id, 'publisher'), operation, 'Succeeded', duration_ms, payload, output,
        :now, COALESCE(correlation_id, 'job-' || id), 'job-' || id, attempt, :worker
    FROM done
)
SELECT id, attempt FROM done

-- name: drop
-- Remove what has come to its end, in the transaction that records that end [FENCE-2]. Rows: the claims that were ours.
DELETE FROM holdfast_jobs AS job
USING unnest(:ids::bigint[], :attempts::integer[]) AS report (id, attempt)
WHERE job.id = report.id AND job.attempt = report.attempt AND {{is_ours}}
RETURNING job.id, job.attempt

-- name: drop_recorded
-- Remove what has come to its end and tell the history of it, as its workload has it [FENCE-2]; nothing is told of rows
-- without an engine. Rows: the claims that were ours.
WITH done AS (
    DELETE FROM holdfast_jobs AS job
    USING unnest(:ids::bigint[], :attempts::integer[], :engines::text[], :instance_ids::text[], :operations::text[],
        :statuses::text[], :durations::bigint[], :inputs::text[], :outputs::text[], :errors::text[],
        :correlation_ids::text[], :item_ids::text[], :deliveries::integer[], :applications::text[])
        AS report (id, attempt, engine, instance_id, operation, status, duration_ms, input, output, error,
            correlation_id, item_id, delivery, application)
    WHERE job.id = report.id AND job.attempt = report.attempt AND {{is_ours}}
    RETURNING job.id, job.attempt, report.engine, report.instance_id, report.operation, report.status,
        report.duration_ms, report.input, report.output, report.error, report.correlation_id, report.item_id,
        report.delivery, report.application
),
told AS (
    INSERT INTO holdfast_history
        (engine, instance_id, operation, status, duration_ms, input, output, error, created_at, correlation_id, item_id,
         attempt, application)
    SELECT engine, instance_id, operation, status, duration_ms, input, output, error, :now, correlation_id, item_id,
        delivery, application
    FROM done
    WHERE engine IS NOT NULL
)
SELECT id, attempt FROM done

-- name: fail
-- End attempts that failed: retry or dead letter [FENCE-2] [RETRY-1]. Rows: the attempts that were ours, and what became of them.
WITH report AS (
    SELECT report.id, report.attempt, report.error, report.retry_seconds, report.is_final, report.duration_ms,
        job.failures, job.max_attempts, job.retry_base_seconds,
        job.retry_max_seconds, job.cancel_reason, job.locked_by AS worker, 'scheduled' AS retry_status
    FROM unnest(:ids::bigint[], :attempts::integer[], :errors::text[], :retry_seconds::double precision[],
        :finals::boolean[], :durations::bigint[])
        AS report (id, attempt, error, retry_seconds, is_final, duration_ms)
    JOIN holdfast_jobs AS job ON job.id = report.id AND job.attempt = report.attempt AND {{is_ours}}
    ORDER BY report.id
    FOR UPDATE OF job
),
{{retry_or_dead_letter}}
SELECT id, attempt, status FROM ended

-- name: put_back
-- Give attempts back without counting a failure: a snooze, or a drain, which keeps its place [FENCE-2]. Not those that were
-- cancelled, nor what may run once and has begun, unless its handler snoozes [ONCE-1], nor what was for another version of its
-- handler :most_misfits times before. Rows: what was ours.
UPDATE holdfast_jobs AS job
SET status = CASE WHEN report.seconds > 0 THEN 'scheduled' WHEN job.suspicions > 0 THEN 'suspect' ELSE 'ready' END,
    run_at = :now + report.seconds * interval '1 second',
    ready_at = CASE WHEN report.seconds > 0 OR job.suspicions > 0 THEN :now ELSE job.ready_at END,
    locked_by = NULL,
    lease_until = NULL,
    last_error = COALESCE(report.reason, job.last_error),
    misfits = CASE WHEN report.is_misfit = 1 THEN job.misfits + 1 WHEN report.seconds > 0 THEN 0 ELSE job.misfits END,
    undone = CASE WHEN report.is_undone = 1 THEN job.undone + 1 WHEN report.seconds > 0 THEN 0 ELSE job.undone END
FROM unnest(:ids::bigint[], :attempts::integer[], :seconds::double precision[], :reasons::text[], :misfits::integer[],
        :undone::integer[])
    AS report (id, attempt, seconds, reason, is_misfit, is_undone)
WHERE job.id = report.id AND job.attempt = report.attempt AND {{is_ours}}
    AND job.cancel_reason IS NULL
    AND NOT (COALESCE(job.max_attempts, 0) = 1 AND job.begun_attempt = job.attempt AND report.seconds = 0)
    AND NOT (report.is_misfit = 1 AND job.misfits >= :most_misfits)
RETURNING job.id, job.attempt

-- name: end_cancelled
-- End running jobs that were asked to stop and did [FENCE-2]. Rows: what was ours.
WITH ended AS (
    UPDATE holdfast_jobs AS job
    SET status = 'cancelled', locked_by = NULL, lease_until = NULL, held_key = NULL, run_at = :now
    FROM unnest(:ids::bigint[], :attempts::integer[], :durations::bigint[]) AS report (id, attempt, duration_ms)
    WHERE job.id = report.id AND job.attempt = report.attempt AND {{is_ours}} AND job.cancel_reason IS NOT NULL
    RETURNING job.*, report.duration_ms
),
told AS (
    INSERT INTO holdfast_history
        (engine, instance_id, operation, status, duration_ms, input, error, created_at, correlation_id, item_id, attempt,
         worker)
    SELECT 'jobs:' || topic, COALESCE(instance_id, 'publisher'), operation, 'Failed', duration_ms, payload,
        'cancelled: ' || cancel_reason, :now, COALESCE(correlation_id, 'job-' || id), 'job-' || id, attempt,
        :worker
    FROM ended
)
SELECT id, attempt FROM ended
