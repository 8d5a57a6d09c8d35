-- The next ready jobs of one key and operation, as many as are asked for; repeated for a number of keys.
-- Rows: those of Candidate.
SELECT job.id, job.limit_key, job.priority, COALESCE(job.ready_at, job.created_at), job.operation
FROM holdfast_jobs AS job
WHERE job.topic = :topic AND job.operation = :operation AND job.status = 'ready' AND job.limit_key = :limit_key
ORDER BY job.priority DESC, COALESCE(job.ready_at, job.created_at), job.id
LIMIT :room
