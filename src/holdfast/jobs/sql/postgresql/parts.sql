-- part: grant
-- The rows that were picked are locked, so they stay where they are: no index is asked for them again.
UPDATE holdfast_jobs AS job
SET status = 'running',
    locked_by = :worker,
    attempt = job.attempt + 1,
    begun_attempt = -(job.attempt + 1),
    started_at = :now,
    lease_until = :now + job.lease_seconds * interval '1 second',
    progress = NULL
FROM picked
WHERE job.ctid = picked.place
RETURNING job.id, job.topic, job.operation, job.payload, job.attempt, job.failures, job.max_attempts, job.priority,
    job.lease_seconds, job.correlation_id, job.instance_id, job.unique_seconds, job.limit_key, job.tags, job.run_at, job.created_at,
    job.ready_at, job.suspicions, job.undone

-- part: wanted
-- What is claimed: operations of open topics, each with the place behind which its jobs are looked for, and how many at
-- most. Limited topics are left to claim_limited.
wanted AS (
    SELECT asked.topic, asked.operation, asked.after_rank, asked.after_ready_at, asked.after_id, asked.place,
        asked.most
    FROM unnest(:topics::text[], :operations::text[], :places::integer[], :after_ranks::integer[],
        :after_ready_ats::timestamptz[], :after_ids::bigint[], :mosts::integer[])
        AS asked (topic, operation, place, after_rank, after_ready_at, after_id, most)
    WHERE NOT EXISTS (
        SELECT FROM holdfast_topics AS known WHERE known.topic = asked.topic AND (known.is_paused OR known.is_limited))
    ORDER BY asked.place
)

-- part: is_ours
-- A CASE, of which the planner assumes that it holds for half of all rows. From statistics made when the queue was idle it
-- would know that hardly any row is locked, read all of them, and compare each with each report.
CASE WHEN job.locked_by = :worker THEN true ELSE false END

-- part: is_server_unknown
-- Whether nobody knows yet: the server was not seen since, but a moment ago.
EXISTS (SELECT 1 FROM holdfast_remote_workers AS remote
    JOIN holdfast_job_servers AS server ON server.name = remote.server
    WHERE remote.owner = job.locked_by AND server.seen_at < job.lease_until
        AND server.seen_at > :now - interval '5 seconds')

-- part: retry_or_dead_letter
-- What becomes of the attempts in `report`: the job, its history, its dead letter [FENCE-2] [RETRY-1]. Rows: those of `ended`.
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
        ready_at = CASE WHEN decided.next_status IN ('scheduled', 'suspect') THEN :now ELSE job.ready_at END,
        misfits = 0,
        undone = 0,
        held_key = CASE WHEN decided.next_status IN ('scheduled', 'suspect') THEN job.held_key END,
        first_failed_at = COALESCE(job.first_failed_at, :now),
        last_failed_at = :now,
        last_error = decided.error
    FROM decided
    WHERE job.id = decided.id AND job.attempt = decided.attempt AND CASE WHEN job.status = 'running' THEN true ELSE false END
    RETURNING job.id, job.attempt, job.topic, job.operation, job.payload, job.status, job.correlation_id, job.instance_id,
        job.first_failed_at, job.last_failed_at, decided.error, decided.duration_ms, job.run_at, job.cancel_reason,
        decided.worker
),
told AS (
    INSERT INTO holdfast_history
        (engine, instance_id, operation, status, duration_ms, input, error, created_at, correlation_id, item_id, attempt,
         worker)
    SELECT 'jobs:' || topic, COALESCE(instance_id, 'publisher'), operation, 'Failed', GREATEST(0, duration_ms), payload,
        CASE WHEN status = 'cancelled' THEN 'cancelled: ' || cancel_reason ELSE error END,
        :now, COALESCE(correlation_id, 'job-' || id), 'job-' || id, attempt, worker
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

-- part: has_reserved
-- Whether somebody was ready to test a suspect a moment ago, and there was no room: whoever is repeats it twice a second.
reserved_at BETWEEN :now - interval '5 seconds' AND :now
