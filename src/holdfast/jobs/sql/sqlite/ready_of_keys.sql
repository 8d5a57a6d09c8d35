-- The next ready jobs of one key, as many as are asked for; repeated for a number of keys.
-- Rows: ids with their keys and priorities.
SELECT job.id, job.limit_key, job.priority FROM holdfast_jobs AS job
WHERE job.topic = :topic AND job.status = 'ready' AND job.limit_key = :limit_key
ORDER BY job.priority DESC, job.id
LIMIT :room
