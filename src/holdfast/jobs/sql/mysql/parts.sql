-- part: batch
-- The batch as a table: one row per report, NULL where a report says nothing, in the order of ids it was sent in.
JSON_TABLE(:batch, '$[*]' COLUMNS (
    id BIGINT PATH '$.id', attempt INT PATH '$.attempt', duration_ms BIGINT PATH '$.duration_ms',
    output LONGTEXT PATH '$.output', error LONGTEXT PATH '$.error', retry_seconds DOUBLE PATH '$.retry_seconds',
    is_final TINYINT PATH '$.is_final', next_status VARCHAR(10) PATH '$.next_status',
    delay_seconds DOUBLE PATH '$.delay_seconds', reason LONGTEXT PATH '$.reason', progress LONGTEXT PATH '$.progress',
    suspicions INT PATH '$.suspicions', is_misfit TINYINT PATH '$.is_misfit',
    is_undone TINYINT PATH '$.is_undone'))

-- part: asked
-- The jobs of the batch, whoever runs them.
{{batch}} AS report
STRAIGHT_JOIN holdfast_jobs AS job FORCE INDEX (PRIMARY) ON job.id = report.id

-- part: claims
-- The jobs of the batch whose claims are still good: the token guard [FENCE-2]. The hints keep to the primary key in
-- the order of the batch, whatever the statistics say: another plan would lock rows that are not ours.
{{batch}} AS report
STRAIGHT_JOIN holdfast_jobs AS job FORCE INDEX (PRIMARY) ON job.id = report.id
    AND job.attempt = report.attempt AND job.locked_by = :worker

-- part: claimed_columns
-- What a worker is told of a job it claims, in the order of ClaimedJob; the attempt is the one it starts.
job.id, job.topic, job.operation, job.payload, job.attempt + 1 AS attempt, job.failures, job.max_attempts,
    job.priority, job.lease_seconds, job.correlation_id, job.instance_id, job.unique_seconds, job.limit_key, job.tags,
    job.run_at, job.created_at, job.ready_at, job.suspicions, job.undone

-- part: grant
-- Grant the leases of the jobs in :ids. Counted: one row each. One table, because an UPDATE of several goes through a
-- temporary one.
UPDATE holdfast_jobs AS job
SET job.status = 'running',
    job.locked_by = :worker,
    job.begun_attempt = -(job.attempt + 1),
    job.attempt = job.attempt + 1,
    job.started_at = :now,
    job.lease_until = :now + job.lease_seconds seconds,
    job.progress = NULL
WHERE job.id IN (:ids) AND job.status = 'ready'

-- part: is_server_unknown
-- Whether nobody knows yet: the server was not seen since, but a moment ago.
EXISTS (SELECT 1 FROM holdfast_remote_workers AS remote
    JOIN holdfast_job_servers AS server ON server.name = remote.server
    WHERE remote.owner = job.locked_by AND server.seen_at < job.lease_until
        AND server.seen_at > :now - INTERVAL 5 SECOND)

-- part: is_last_attempt
-- Whether one more failure is one too many [RETRY-1].
job.max_attempts IS NOT NULL AND job.failures + 1 >= job.max_attempts

-- part: backoff
-- The pause before the next try: it doubles with every failure, up to a maximum, give or take a quarter [RETRY-1].
LEAST(job.retry_max_seconds, job.retry_base_seconds * POW(2, LEAST(job.failures, 60))) * (0.75 + RAND() * 0.5)

-- part: letter_key
-- The key of a dead letter: the job, and when.
CONCAT('job-', job.id, '-', DATE_FORMAT(job.last_failed_at, '%Y%m%dT%H%i%s%fZ'))

-- part: success_history
-- Tell the history of successes [FENCE-2].
INSERT INTO holdfast_history
    (engine, instance_id, operation, status, duration_ms, input, output, created_at, correlation_id, item_id, attempt,
     worker)
SELECT CONCAT('jobs:', job.topic), COALESCE(job.instance_id, 'publisher'), job.operation, 'Succeeded',
    report.duration_ms, job.payload, report.output, :now, COALESCE(job.correlation_id, CONCAT('job-', job.id)),
    CONCAT('job-', job.id), job.attempt, :worker
FROM {{claims}}

-- part: retry_or_dead_letter
-- What was decided for the attempts of the batch is done: the job, its history, its dead letter [FENCE-2] [RETRY-1].
-- The caller has just seen that the claims are good, in this transaction, and holds the locks.
INSERT INTO holdfast_history
    (engine, instance_id, operation, status, duration_ms, input, error, created_at, correlation_id, item_id, attempt,
     worker)
SELECT CONCAT('jobs:', job.topic), COALESCE(job.instance_id, 'publisher'), job.operation, 'Failed', report.duration_ms,
    job.payload, CASE WHEN report.next_status = 'cancelled' THEN CONCAT('cancelled: ', job.cancel_reason) ELSE report.error END,
    :now, COALESCE(job.correlation_id, CONCAT('job-', job.id)),
    CONCAT('job-', job.id), job.attempt, job.locked_by
FROM {{asked}}
-- The history of an engine's message is the engine's own.
WHERE job.topic NOT LIKE 'engine.%';
UPDATE {{asked}}
SET job.status = report.next_status,
    job.locked_by = NULL,
    job.lease_until = NULL,
    job.failures = job.failures + CASE WHEN report.is_final OR report.next_status = 'cancelled' THEN 0 ELSE 1 END,
    job.run_at = CASE WHEN report.next_status IN ('scheduled', 'suspect') THEN :now + report.delay_seconds seconds ELSE :now END,
    job.ready_at = CASE WHEN report.next_status IN ('scheduled', 'suspect') THEN :now ELSE job.ready_at END,
    job.misfits = 0,
    job.undone = 0,
    job.held_key = CASE WHEN report.next_status IN ('scheduled', 'suspect') THEN job.held_key END,
    job.first_failed_at = COALESCE(job.first_failed_at, :now),
    job.last_failed_at = :now,
    job.last_error = report.error
WHERE job.attempt = report.attempt AND job.status = 'running';
INSERT INTO holdfast_dead_letters
    (engine, row_key, instance_id, original_queue, original_message, error_message, dequeue_count,
     first_failure_at, last_failure_at, status, correlation_id, item_id)
SELECT CONCAT('jobs:', job.topic), {{letter_key}},
    COALESCE(job.instance_id, 'publisher'), job.topic, job.payload, report.error, job.attempt,
    job.first_failed_at, job.last_failed_at, 'Pending', COALESCE(job.correlation_id, CONCAT('job-', job.id)),
    CONCAT('job-', job.id)
FROM {{asked}}
WHERE job.status = 'dead'

-- part: has_reserved
-- Whether somebody was ready to test a suspect a moment ago, and there was no room: whoever is repeats it twice a second.
reserved_at BETWEEN :now - INTERVAL 5 SECOND AND :now
