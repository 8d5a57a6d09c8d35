-- Add a job that has no unique key; run for many jobs at once. Rows: none.
INSERT INTO holdfast_jobs
    (topic, operation, payload, status, priority, limit_key, max_attempts, retry_base_seconds, retry_max_seconds,
     lease_seconds, run_at, correlation_id, instance_id, tags)
VALUES (:topic, :operation, :payload, :status, :priority, :limit_key, :max_attempts, :retry_base_seconds,
     :retry_max_seconds, :lease_seconds, :run_at, :correlation_id, :instance_id, :tags)
