-- The next ready jobs of one key, as many as are asked for; repeated for a number of keys.
-- Rows: ids with their keys and priorities.
-- They are locked when they are claimed, which is soon: nobody else claims from this topic now.
SELECT job.id, job.limit_key, job.priority FROM holdfast_jobs AS job FORCE INDEX (holdfast_jobs_by_key)
WHERE job.topic = :topic AND job.status = 'ready' AND job.limit_key = :limit_key
ORDER BY job.priority DESC, job.id
LIMIT :room
