-- name: set_topic
-- Declare a topic's limits, and whose they are. Rows: none.
INSERT INTO holdfast_topics (topic, is_limited, max_running, max_running_per_key, rate_count, rate_seconds,
    rate_count_per_key, rate_seconds_per_key, limited_by, updated_at)
VALUES (:topic, :is_limited, :max_running, :max_running_per_key, :rate_count, :rate_seconds,
    :rate_count_per_key, :rate_seconds_per_key, :limited_by, :now)
ON CONFLICT (topic) DO UPDATE SET is_limited = is_limited OR excluded.is_limited, max_running = excluded.max_running,
    max_running_per_key = excluded.max_running_per_key, rate_count = excluded.rate_count,
    rate_seconds = excluded.rate_seconds, rate_count_per_key = excluded.rate_count_per_key,
    rate_seconds_per_key = excluded.rate_seconds_per_key, limited_by = excluded.limited_by, updated_at = excluded.updated_at

-- name: pause_topic
-- Pause or resume a topic. Rows: none.
INSERT INTO holdfast_topics (topic, is_paused, updated_at) VALUES (:topic, :is_paused, :now)
ON CONFLICT (topic) DO UPDATE SET is_paused = excluded.is_paused, updated_at = excluded.updated_at

-- name: stats
-- How many jobs of each topic and operation are in each status, how long the oldest ready one has waited, and how many
-- wait because their payload is for another version of their handler than the workers have that tried.
SELECT topic, operation, status, count(*) AS jobs,
    (julianday(:now) - julianday(min(CASE WHEN status = 'ready' THEN COALESCE(ready_at, created_at) END))) * 86400.0
        AS oldest_seconds,
    sum(CASE WHEN misfits > 0 AND status IN ('ready', 'scheduled') THEN 1 ELSE 0 END) AS misfits
FROM holdfast_jobs
GROUP BY topic, operation, status
ORDER BY topic, operation, status

-- name: cancel
-- Cancel waiting jobs at once, ask the workers of running ones to stop [FENCE-2].
-- Rows: what is changed, and the status it gets.
SELECT job.id, CASE WHEN job.status = 'running' THEN 'running' ELSE 'cancelled' END AS next_status
{{asked}}
WHERE job.status IN ('ready', 'scheduled', 'suspect', 'running');
UPDATE holdfast_jobs AS job
SET status = report.next_status,
    held_key = CASE WHEN report.next_status = 'running' THEN job.held_key END,
    run_at = CASE WHEN report.next_status = 'running' THEN job.run_at ELSE :now END,
    cancel_reason = :reason
FROM {{batch}} AS report
WHERE job.id = report.id;
INSERT INTO holdfast_history
    (engine, instance_id, operation, status, duration_ms, input, error, created_at, correlation_id, item_id, attempt)
SELECT 'jobs:' || job.topic, COALESCE(job.instance_id, 'publisher'), job.operation, 'Failed', 0, job.payload,
    'cancelled: ' || job.cancel_reason,
    :now, COALESCE(job.correlation_id, 'job-' || job.id), 'job-' || job.id, job.attempt
{{asked}}
WHERE job.status = 'cancelled'

-- name: retry
-- Put ended jobs back by hand: the attempt goes on growing, the failures start anew. Rows: what is put back.
SELECT job.id, job.topic
{{asked}}
WHERE job.status IN ('dead', 'cancelled', 'scheduled', 'suspect');
UPDATE holdfast_jobs AS job
SET status = 'ready', run_at = :now, ready_at = :now, failures = 0, suspicions = 0, misfits = 0, undone = 0, cancel_reason = NULL, held_key = job.unique_key
FROM {{batch}} AS report
WHERE job.id = report.id

-- name: resolve_retried
-- Resolve the dead letters of jobs that were put back. Rows: none. The + keeps to the index of items: most are pending.
UPDATE holdfast_dead_letters
SET status = 'Resolved', resolution_notes = 'Retried', resolved_at = :now, resolved_by = :actor, retried_as = item_id
WHERE item_id IN (SELECT json_extract(value, '$.item_id') FROM json_each(:batch)) AND +status = 'Pending'
    AND engine LIKE 'jobs:%'
