-- name: set_topic
-- Declare a topic's limits, and whose they are. Rows: none.
INSERT INTO holdfast_topics (topic, is_limited, max_running, max_running_per_key, rate_count, rate_seconds,
    rate_count_per_key, rate_seconds_per_key, limited_by, updated_at)
VALUES (:topic, :is_limited, :max_running, :max_running_per_key, :rate_count, :rate_seconds,
    :rate_count_per_key, :rate_seconds_per_key, :limited_by, :now)
ON CONFLICT (topic) DO UPDATE SET is_limited = holdfast_topics.is_limited OR excluded.is_limited, max_running = excluded.max_running,
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
    extract(epoch FROM :now - min(CASE WHEN status = 'ready' AND isfinite(GREATEST(ready_at, created_at))
        THEN GREATEST(ready_at, created_at) END))::double precision
        AS oldest_seconds,
    sum(CASE WHEN misfits > 0 AND status IN ('ready', 'scheduled') THEN 1 ELSE 0 END) AS misfits
FROM holdfast_jobs
GROUP BY topic, operation, status
ORDER BY topic, operation, status

-- name: cancel
-- Cancel waiting jobs at once, ask the workers of running ones to stop [FENCE-2]. Rows: what was changed, and the status now.
WITH changed AS (
    UPDATE holdfast_jobs AS job
    SET status = CASE WHEN job.status = 'running' THEN 'running' ELSE 'cancelled' END,
        held_key = CASE WHEN job.status = 'running' THEN job.held_key END,
        run_at = CASE WHEN job.status = 'running' THEN job.run_at ELSE :now END,
        cancel_reason = :reason
    FROM unnest(:ids::bigint[]) AS asked (id)
    WHERE job.id = asked.id AND job.status IN ('ready', 'scheduled', 'suspect', 'running')
    RETURNING job.*
),
told AS (
    INSERT INTO holdfast_history
        (engine, instance_id, operation, status, duration_ms, input, error, created_at, correlation_id, item_id, attempt)
    SELECT 'jobs:' || topic, COALESCE(instance_id, 'publisher'), operation, 'Failed', 0, payload, 'cancelled: ' || cancel_reason,
        :now, COALESCE(correlation_id, 'job-' || id), 'job-' || id, attempt
    FROM changed
    WHERE status = 'cancelled'
)
SELECT id, status FROM changed

-- name: retry
-- Put ended jobs back by hand: the attempt goes on growing, the failures start anew. Rows: what was put back.
UPDATE holdfast_jobs AS job
SET status = 'ready', run_at = :now, ready_at = :now, failures = 0, suspicions = 0, misfits = 0, undone = 0, cancel_reason = NULL, held_key = job.unique_key
FROM unnest(:ids::bigint[]) AS asked (id)
WHERE job.id = asked.id AND job.status IN ('dead', 'cancelled', 'scheduled', 'suspect')
RETURNING job.id, job.topic

-- name: resolve_retried
-- Resolve the dead letters of jobs that were put back. Rows: how many.
UPDATE holdfast_dead_letters
SET status = 'Resolved', resolution_notes = 'Retried', resolved_at = :now, resolved_by = :actor, retried_as = item_id
WHERE item_id = ANY (:items::text[]) AND status = 'Pending' AND engine LIKE 'jobs:%'
RETURNING row_key
