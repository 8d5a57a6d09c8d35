-- The next ready jobs of one key and operation, as many as are asked for; repeated for a number of keys.
-- Rows: those of Candidate.
-- They are locked when they are claimed, which is soon: nobody else claims from this topic now.
SELECT job.id, job.limit_key, job.priority, job.ready_at, job.operation
FROM holdfast_jobs AS job FORCE INDEX (holdfast_jobs_by_key)
WHERE job.topic = :topic AND job.operation = :operation AND job.status = 'ready' AND job.limit_key = :limit_key
ORDER BY job.priority DESC, job.ready_at, job.id
LIMIT :room
