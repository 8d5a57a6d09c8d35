-- The next ready jobs of an operation that have no key; repeated for a number of operations.
-- Rows: those of Candidate.
SELECT job.id, job.limit_key, job.priority, job.ready_at, job.operation
FROM holdfast_jobs AS job FORCE INDEX (holdfast_jobs_by_key)
WHERE job.topic = :topic AND job.operation = :operation AND job.status = 'ready' AND job.limit_key IS NULL
ORDER BY job.priority DESC, job.ready_at, job.id
LIMIT :room
