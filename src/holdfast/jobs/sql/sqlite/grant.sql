-- Grant the leases of the batch. Counted: one row per entry.
UPDATE holdfast_jobs AS job
SET status = 'running',
    locked_by = :worker,
    attempt = job.attempt + 1,
    begun_attempt = -(job.attempt + 1),
    started_at = :now,
    lease_until = :now + job.lease_seconds seconds,
    progress = NULL
FROM {{batch.sql}} AS picked
WHERE job.id = picked.id AND job.status = 'ready'
