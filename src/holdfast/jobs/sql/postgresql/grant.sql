UPDATE holdfast_jobs AS job
SET status = 'running',
    locked_by = :worker,
    attempt = job.attempt + 1,
    begun_attempt = -(job.attempt + 1),
    started_at = :now,
    lease_until = :now + job.lease_seconds * interval '1 second',
    progress = NULL
FROM picked
WHERE job.id = picked.id
RETURNING job.id, job.topic, job.operation, job.payload, job.attempt, job.failures, job.max_attempts, job.priority,
    job.lease_seconds, job.correlation_id, job.instance_id, job.unique_seconds, job.limit_key, job.tags, job.run_at, job.created_at,
    job.ready_at, job.suspicions
