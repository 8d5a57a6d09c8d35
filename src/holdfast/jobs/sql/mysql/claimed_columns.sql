-- What a worker is told of a job it claims, in the order of ClaimedJob; the attempt is the one it starts.
job.id, job.topic, job.operation, job.payload, job.attempt + 1 AS attempt, job.failures, job.max_attempts,
    job.priority, job.lease_seconds, job.correlation_id, job.instance_id, job.unique_seconds, job.limit_key, job.tags,
    job.run_at, job.created_at, job.ready_at, job.suspicions
