-- Add one job whose key, if it has one, is free. Counted: one row, or none when the key is taken.
INSERT INTO holdfast_jobs
    (topic, operation, payload, status, priority, limit_key, max_attempts, retry_base_seconds, retry_max_seconds,
     lease_seconds, run_at, unique_key, held_key, unique_seconds, correlation_id, instance_id, tags, ready_at)
VALUES (:topic, :operation, :payload, CASE WHEN :run_at > :now THEN 'scheduled' ELSE 'ready' END, :priority, :limit_key,
     :max_attempts, :retry_base_seconds, :retry_max_seconds, :lease_seconds, :run_at, :unique_key, :unique_key,
     :unique_seconds, :correlation_id, :instance_id, :tags, :now)
ON CONFLICT (topic, held_key) WHERE held_key IS NOT NULL DO NOTHING
