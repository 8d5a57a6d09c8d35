-- Grant the leases of the jobs in :ids. Counted: one row each. One table, because an UPDATE of several goes through a
-- temporary one.
UPDATE holdfast_jobs AS job
SET job.status = 'running',
    job.locked_by = :worker,
    job.begun_attempt = -(job.attempt + 1),
    job.attempt = job.attempt + 1,
    job.started_at = :now,
    job.lease_until = :now + job.lease_seconds seconds,
    job.progress = NULL
WHERE job.id IN (:ids) AND job.status = 'ready'
