-- part: batch
-- The batch as a table: one row per report, NULL where a report says nothing.
(SELECT json_extract(value, '$.id') AS id, json_extract(value, '$.attempt') AS attempt,
    json_extract(value, '$.duration_ms') AS duration_ms, json_extract(value, '$.output') AS output,
    json_extract(value, '$.error') AS error, json_extract(value, '$.retry_seconds') AS retry_seconds,
    json_extract(value, '$.is_final') AS is_final, json_extract(value, '$.next_status') AS next_status,
    json_extract(value, '$.delay_seconds') AS delay_seconds, json_extract(value, '$.reason') AS reason,
    json_extract(value, '$.progress') AS progress, json_extract(value, '$.suspicions') AS suspicions,
    json_extract(value, '$.is_misfit') AS is_misfit, json_extract(value, '$.is_undone') AS is_undone
FROM json_each(:batch))

-- part: asked
-- The jobs of the batch, whoever runs them.
FROM {{batch}} AS report
CROSS JOIN holdfast_jobs AS job ON job.id = report.id

-- part: claims
-- The jobs of the batch whose claims are still good: the token guard [FENCE-2].
FROM {{batch}} AS report
CROSS JOIN holdfast_jobs AS job ON job.id = report.id
    AND job.attempt = report.attempt AND job.locked_by = :worker

-- part: claimed_columns
-- What a worker is told of a job it claims, in the order of ClaimedJob; the attempt is the one it starts.
job.id, job.topic, job.operation, job.payload, job.attempt + 1 AS attempt, job.failures, job.max_attempts,
    job.priority, job.lease_seconds, job.correlation_id, job.instance_id, job.unique_seconds, job.limit_key, job.tags,
    job.run_at, job.created_at, COALESCE(job.ready_at, job.created_at) AS ready_at, job.suspicions, job.undone

-- part: grant
-- Grant the leases of the batch. Counted: one row per entry.
UPDATE holdfast_jobs AS job
SET status = 'running',
    locked_by = :worker,
    attempt = job.attempt + 1,
    begun_attempt = -(job.attempt + 1),
    started_at = :now,
    lease_until = :now + job.lease_seconds seconds,
    progress = NULL
FROM {{batch}} AS picked
WHERE job.id = picked.id AND job.status = 'ready'

-- part: is_server_unknown
-- Whether nobody knows yet: the server was not seen since, but a moment ago.
EXISTS (SELECT 1 FROM holdfast_remote_workers AS remote
    JOIN holdfast_job_servers AS server ON server.name = remote.server
    WHERE remote.owner = job.locked_by AND server.seen_at < job.lease_until
        AND (julianday(:now) - julianday(server.seen_at)) * 86400.0 < 5)

-- part: is_last_attempt
-- Whether one more failure is one too many [RETRY-1].
job.max_attempts IS NOT NULL AND job.failures + 1 >= job.max_attempts

-- part: backoff
-- The pause before the next try: it doubles with every failure, up to a maximum, give or take a quarter [RETRY-1].
min(job.retry_max_seconds, job.retry_base_seconds * (1 << min(job.failures, 60)))
        * (0.75 + abs(random() % 1000000) / 2000000.0)

-- part: letter_key
-- The key of a dead letter: the job, and when. This clock counts milliseconds, so the attempt fills the last three
-- digits: a job that is retried by hand and dies again within one has a second key.
'job-' || job.id || '-' || replace(strftime('%Y%m%dT%H%M%f', job.last_failed_at), '.', '')
        || printf('%03d', job.attempt % 1000) || 'Z'

-- part: success_history
-- Tell the history of successes [FENCE-2].
INSERT INTO holdfast_history
    (engine, instance_id, operation, status, duration_ms, input, output, created_at, correlation_id, item_id, attempt,
     worker)
SELECT 'jobs:' || job.topic, COALESCE(job.instance_id, 'publisher'), job.operation, 'Succeeded',
    report.duration_ms, job.payload, report.output,
    :now, COALESCE(job.correlation_id, 'job-' || job.id), 'job-' || job.id, job.attempt, :worker
{{claims}}

-- part: retry_or_dead_letter
-- What was decided for the attempts of the batch is done: the job, its history, its dead letter [FENCE-2] [RETRY-1].
-- The caller has just seen that the claims are good, in this transaction.
INSERT INTO holdfast_history
    (engine, instance_id, operation, status, duration_ms, input, error, created_at, correlation_id, item_id, attempt,
     worker)
SELECT 'jobs:' || job.topic, COALESCE(job.instance_id, 'publisher'), job.operation, 'Failed',
    report.duration_ms, job.payload,
    CASE WHEN report.next_status = 'cancelled' THEN 'cancelled: ' || job.cancel_reason ELSE report.error END,
    :now, COALESCE(job.correlation_id, 'job-' || job.id), 'job-' || job.id, job.attempt, job.locked_by
{{asked}}
-- The history of an engine's message is the engine's own.
WHERE job.topic NOT LIKE 'engine.%';
UPDATE holdfast_jobs AS job
SET status = report.next_status,
    locked_by = NULL,
    lease_until = NULL,
    failures = job.failures + CASE WHEN report.is_final OR report.next_status = 'cancelled' THEN 0 ELSE 1 END,
    run_at = CASE WHEN report.next_status IN ('scheduled', 'suspect') THEN :now + report.delay_seconds seconds ELSE :now END,
    ready_at = CASE WHEN report.next_status IN ('scheduled', 'suspect') THEN :now ELSE job.ready_at END,
    misfits = 0,
    undone = 0,
    held_key = CASE WHEN report.next_status IN ('scheduled', 'suspect') THEN job.held_key END,
    first_failed_at = COALESCE(job.first_failed_at, :now),
    last_failed_at = :now,
    last_error = report.error
FROM {{batch}} AS report
WHERE job.id = report.id AND job.attempt = report.attempt AND job.status = 'running';
INSERT INTO holdfast_dead_letters
    (engine, row_key, instance_id, original_queue, original_message, error_message, dequeue_count,
     first_failure_at, last_failure_at, status, correlation_id, item_id)
SELECT 'jobs:' || job.topic, {{letter_key}},
    COALESCE(job.instance_id, 'publisher'), job.topic, job.payload, report.error, job.attempt,
    job.first_failed_at, job.last_failed_at, 'Pending', COALESCE(job.correlation_id, 'job-' || job.id), 'job-' || job.id
{{asked}}
WHERE job.status = 'dead'

-- part: has_reserved
-- Whether somebody was ready to test a suspect a moment ago, and there was no room: whoever is repeats it twice a second.
(julianday(:now) - julianday(reserved_at)) * 86400.0 BETWEEN 0 AND 5
