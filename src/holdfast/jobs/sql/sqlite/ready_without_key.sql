-- The next ready jobs of an operation that have no key; repeated for a number of operations.
-- Rows: those of Candidate.
SELECT job.id, job.limit_key, job.priority, COALESCE(job.ready_at, job.created_at), job.operation
FROM holdfast_jobs AS job
WHERE job.topic = :topic AND job.operation = :operation AND job.status = 'ready' AND job.limit_key IS NULL
ORDER BY job.priority DESC, COALESCE(job.ready_at, job.created_at), job.id
LIMIT :room
