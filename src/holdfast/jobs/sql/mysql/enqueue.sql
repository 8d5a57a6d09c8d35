-- name: enqueue
-- Add one job. Rows: none; a key that is taken is a duplicate-key error, which undoes this statement alone.
INSERT INTO holdfast_jobs
    (topic, operation, payload, status, priority, limit_key, max_attempts, retry_base_seconds, retry_max_seconds,
     lease_seconds, run_at, unique_key, held_key, unique_seconds, correlation_id, instance_id, tags, ready_at)
VALUES (:topic, :operation, :payload, CASE WHEN :run_at > :now THEN 'scheduled' ELSE 'ready' END, :priority, :limit_key,
     :max_attempts, :retry_base_seconds, :retry_max_seconds, :lease_seconds, :run_at, :unique_key, :unique_key,
     :unique_seconds, :correlation_id, :instance_id, :tags, :now)

-- name: enqueue_many
-- Add a job that has no unique key; run for many jobs at once. Rows: none.
INSERT INTO holdfast_jobs
    (topic, operation, payload, status, priority, limit_key, max_attempts, retry_base_seconds, retry_max_seconds,
     lease_seconds, run_at, correlation_id, instance_id, tags)
VALUES (:topic, :operation, :payload, :status, :priority, :limit_key, :max_attempts, :retry_base_seconds,
     :retry_max_seconds, :lease_seconds, :run_at, :correlation_id, :instance_id, :tags)

-- name: note_keys
-- From now on jobs of this topic have keys: it is claimed under its lock. Rows: one when that is news.
-- The look comes first and locks nothing: else every enqueue would hold up the workers who claim from the topic.
SELECT 1 AS is_news FROM DUAL WHERE NOT EXISTS (SELECT 1 FROM holdfast_topics WHERE topic = :topic AND is_limited);
INSERT INTO holdfast_topics (topic, is_limited, updated_at) VALUES (:topic, 1, :now)
ON DUPLICATE KEY UPDATE is_limited = 1

-- name: free_key
-- Let go of a key whose window has passed. Rows: the holder that was removed, or none.
-- The look comes first and locks nothing: a DELETE that finds nothing would lock the gap in the caller's transaction.
SELECT id FROM holdfast_jobs
WHERE topic = :topic AND held_key = :unique_key AND status = 'done'
    AND TIMESTAMPDIFF(MICROSECOND, run_at, :now) / 1e6 >= unique_seconds;
DELETE job FROM {{asked}} WHERE job.status = 'done'

-- name: holder
-- Who holds a key now, also when the caller's transaction began before that job was added. Rows: one or none.
SELECT id FROM holdfast_jobs WHERE topic = :topic AND held_key = :unique_key LOCK IN SHARE MODE

-- name: start_periodic
-- Note when a periodic job was first seen, from when its slots count, and whose it is, unless it is somebody's. Rows: none.
INSERT INTO holdfast_periodic (name, last_run_at, application) VALUES (:name, :slot, :application)
ON DUPLICATE KEY UPDATE application = COALESCE(application, VALUES(application))

-- name: take_slot
-- Move a periodic job on to :slot, unless someone else has [PERIODIC-1]. Counted: one row changes when it was us.
INSERT INTO holdfast_periodic (name, last_run_at) VALUES (:name, '1000-01-01')
ON DUPLICATE KEY UPDATE name = VALUES(name);
UPDATE holdfast_periodic SET last_run_at = :slot WHERE name = :name AND last_run_at < :slot
