-- name: enqueue
-- Add one job whose key, if it has one, is free, and wake the workers of its topic when it commits.
-- Rows: one, or none when the key is taken.
WITH added AS (
    INSERT INTO holdfast_jobs
        (topic, operation, payload, status, priority, limit_key, max_attempts, retry_base_seconds, retry_max_seconds,
         lease_seconds, run_at, unique_key, held_key, unique_seconds, correlation_id, instance_id, tags, ready_at)
    VALUES (:topic, :operation, :payload, CASE WHEN :run_at::timestamptz > :now THEN 'scheduled' ELSE 'ready' END, :priority, :limit_key,
         :max_attempts, :retry_base_seconds, :retry_max_seconds, :lease_seconds, :run_at, :unique_key, :unique_key,
         :unique_seconds, :correlation_id, :instance_id, :tags, :now)
    ON CONFLICT (topic, held_key) WHERE held_key IS NOT NULL DO NOTHING
    RETURNING id
)
SELECT added.id, pg_notify('holdfast_jobs', :topic) FROM added

-- name: note_keys
-- From now on jobs of this topic have keys: it is claimed under its lock. Looks first, because an upsert would hold that
-- lock until the caller commits. Rows: none.
INSERT INTO holdfast_topics (topic, is_limited, updated_at)
SELECT :topic, true, :now
WHERE NOT EXISTS (SELECT FROM holdfast_topics WHERE topic = :topic AND is_limited)
ON CONFLICT (topic) DO UPDATE SET is_limited = true

-- name: free_key
-- Let go of a key whose window has passed. Rows: none.
DELETE FROM holdfast_jobs
WHERE topic = :topic AND held_key = :unique_key AND status = 'done'
    AND run_at + unique_seconds * interval '1 second' <= :now

-- name: holder
-- Who holds a key. Rows: one or none.
SELECT id FROM holdfast_jobs WHERE topic = :topic AND held_key = :unique_key

-- name: start_periodic
-- Note when a periodic job was first seen, from when its slots count, and whose it is, unless it is somebody's. Rows: none.
INSERT INTO holdfast_periodic (name, last_run_at, application) VALUES (:name, :slot, :application)
ON CONFLICT (name) DO UPDATE SET application = excluded.application WHERE holdfast_periodic.application IS NULL

-- name: take_slot
-- Move a periodic job on to :slot, unless someone else has [PERIODIC-1]. Rows: one when it was us.
INSERT INTO holdfast_periodic (name, last_run_at) VALUES (:name, :slot)
ON CONFLICT (name) DO UPDATE SET last_run_at = excluded.last_run_at
    WHERE holdfast_periodic.last_run_at < excluded.last_run_at
RETURNING name
