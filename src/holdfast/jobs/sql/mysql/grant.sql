-- Grant the leases of the batch. Counted: one row per entry.
UPDATE {{asked.sql}}
SET job.status = 'running',
    job.locked_by = :worker,
    job.attempt = job.attempt + 1,
    job.started_at = :now,
    job.lease_until = :now + job.lease_seconds seconds,
    job.progress = NULL
WHERE job.status = 'ready'
