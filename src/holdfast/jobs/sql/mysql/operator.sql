-- name: set_topic
-- Declare a topic's limits, and whose they are. Rows: none.
INSERT INTO holdfast_topics (topic, is_limited, max_running, max_running_per_key, rate_count, rate_seconds,
    rate_count_per_key, rate_seconds_per_key, limited_by, updated_at)
VALUES (:topic, :is_limited, :max_running, :max_running_per_key, :rate_count, :rate_seconds,
    :rate_count_per_key, :rate_seconds_per_key, :limited_by, :now)
ON DUPLICATE KEY UPDATE is_limited = GREATEST(is_limited, VALUES(is_limited)), max_running = VALUES(max_running),
    max_running_per_key = VALUES(max_running_per_key), rate_count = VALUES(rate_count),
    rate_seconds = VALUES(rate_seconds), rate_count_per_key = VALUES(rate_count_per_key),
    rate_seconds_per_key = VALUES(rate_seconds_per_key), limited_by = VALUES(limited_by), updated_at = VALUES(updated_at)

-- name: pause_topic
-- Pause or resume a topic. Rows: none.
INSERT INTO holdfast_topics (topic, is_paused, updated_at) VALUES (:topic, :is_paused, :now)
ON DUPLICATE KEY UPDATE is_paused = VALUES(is_paused), updated_at = VALUES(updated_at)

-- name: stats
-- How many jobs of each topic and operation are in each status, how long the oldest ready one has waited, and how many
-- wait because their payload is for another version of their handler than the workers have that tried.
SELECT topic, operation, status, count(*) AS jobs,
    TIMESTAMPDIFF(MICROSECOND, min(CASE WHEN status = 'ready' THEN GREATEST(ready_at, created_at) END), :now) / 1e6
        AS oldest_seconds,
    sum(CASE WHEN misfits > 0 AND status IN ('ready', 'scheduled') THEN 1 ELSE 0 END) AS misfits
FROM holdfast_jobs
GROUP BY topic, operation, status
ORDER BY topic, operation, status

-- name: cancel
-- Cancel waiting jobs at once, ask the workers of running ones to stop [FENCE-2].
-- Rows: what is changed, and the status it gets.
SELECT job.id, CASE WHEN job.status = 'running' THEN 'running' ELSE 'cancelled' END AS next_status
FROM {{asked}}
WHERE job.status IN ('ready', 'scheduled', 'suspect', 'running')
FOR UPDATE;
UPDATE {{asked}}
SET job.status = report.next_status,
    job.held_key = CASE WHEN report.next_status = 'running' THEN job.held_key END,
    job.run_at = CASE WHEN report.next_status = 'running' THEN job.run_at ELSE :now END,
    job.cancel_reason = :reason;
INSERT INTO holdfast_history
    (engine, instance_id, operation, status, duration_ms, input, error, created_at, correlation_id, item_id, attempt)
SELECT CONCAT('jobs:', job.topic), COALESCE(job.instance_id, 'publisher'), job.operation, 'Failed', 0, job.payload,
    CONCAT('cancelled: ', job.cancel_reason), :now, COALESCE(job.correlation_id, CONCAT('job-', job.id)),
    CONCAT('job-', job.id), job.attempt
FROM {{asked}}
WHERE job.status = 'cancelled'

-- name: retry
-- Put ended jobs back by hand: the attempt goes on growing, the failures start anew. Rows: what is put back.
SELECT job.id, job.topic
FROM {{asked}}
WHERE job.status IN ('dead', 'cancelled', 'scheduled', 'suspect')
FOR UPDATE;
UPDATE {{asked}}
SET job.status = 'ready', job.run_at = :now, job.ready_at = :now, job.failures = 0, job.suspicions = 0, job.misfits = 0, job.undone = 0, job.cancel_reason = NULL, job.held_key = job.unique_key

-- name: resolve_retried
-- Resolve the dead letters of jobs that were put back. Rows: none.
UPDATE JSON_TABLE(:batch, '$[*]' COLUMNS (
    item_id VARCHAR(200) CHARACTER SET utf8mb4 COLLATE {{key_collation}} PATH '$.item_id')) AS asked
STRAIGHT_JOIN holdfast_dead_letters AS letter FORCE INDEX (holdfast_dead_letters_item) ON letter.item_id = asked.item_id
SET letter.status = 'Resolved', letter.resolution_notes = 'Retried', letter.resolved_at = :now,
    letter.resolved_by = :actor, letter.retried_as = letter.item_id
WHERE letter.status = 'Pending' AND letter.engine LIKE 'jobs:%'
