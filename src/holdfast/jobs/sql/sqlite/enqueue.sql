-- name: enqueue
-- Add one job whose key, if it has one, is free. Counted: one row, or none when the key is taken.
INSERT INTO holdfast_jobs
    (topic, operation, payload, status, priority, limit_key, max_attempts, retry_base_seconds, retry_max_seconds,
     lease_seconds, run_at, unique_key, held_key, unique_seconds, correlation_id, instance_id, tags, ready_at)
VALUES (:topic, :operation, :payload, CASE WHEN :run_at > :now THEN 'scheduled' ELSE 'ready' END, :priority, :limit_key,
     :max_attempts, :retry_base_seconds, :retry_max_seconds, :lease_seconds, :run_at, :unique_key, :unique_key,
     :unique_seconds, :correlation_id, :instance_id, :tags, :now)
ON CONFLICT (topic, held_key) WHERE held_key IS NOT NULL DO NOTHING

-- name: enqueue_many
-- Add a job that has no unique key; run for many jobs at once. Rows: none.
INSERT INTO holdfast_jobs
    (topic, operation, payload, status, priority, limit_key, max_attempts, retry_base_seconds, retry_max_seconds,
     lease_seconds, run_at, correlation_id, instance_id, tags)
VALUES (:topic, :operation, :payload, :status, :priority, :limit_key, :max_attempts, :retry_base_seconds,
     :retry_max_seconds, :lease_seconds, :run_at, :correlation_id, :instance_id, :tags)

-- name: note_keys
-- From now on jobs of this topic have keys: it is claimed under its lock. Rows: one when that is news.
SELECT 1 AS is_news WHERE NOT EXISTS (SELECT 1 FROM holdfast_topics WHERE topic = :topic AND is_limited);
INSERT INTO holdfast_topics (topic, is_limited, updated_at) VALUES (:topic, 1, :now)
ON CONFLICT (topic) DO UPDATE SET is_limited = 1

-- name: free_key
-- Let go of a key whose window has passed. Rows: the holder that was removed, or none.
SELECT id FROM holdfast_jobs
WHERE topic = :topic AND held_key = :unique_key AND status = 'done'
    AND (julianday(:now) - julianday(run_at)) * 86400.0 >= unique_seconds;
DELETE FROM holdfast_jobs WHERE id IN (SELECT id FROM {{batch}}) AND status = 'done'

-- name: holder
-- Who holds a key. Rows: one or none.
SELECT id FROM holdfast_jobs WHERE topic = :topic AND held_key = :unique_key

-- name: start_periodic
-- Note when a periodic job was first seen, from when its slots count, and whose it is, unless it is somebody's. Rows: none.
INSERT INTO holdfast_periodic (name, last_run_at, application) VALUES (:name, :slot, :application)
ON CONFLICT (name) DO UPDATE SET application = excluded.application WHERE holdfast_periodic.application IS NULL

-- name: take_slot
-- Move a periodic job on to :slot, unless someone else has [PERIODIC-1]. Counted: one row changes when it was us.
INSERT INTO holdfast_periodic (name, last_run_at) VALUES (:name, '1000-01-01 00:00:00.000000')
ON CONFLICT (name) DO NOTHING;
UPDATE holdfast_periodic SET last_run_at = :slot WHERE name = :name AND last_run_at < :slot
