-- The next ready jobs of one key, as many as it has room for; repeated for a number of keys. Rows: ids with their keys.
SELECT job.id, job.limit_key FROM holdfast_jobs AS job
WHERE job.topic = :topic AND job.status = 'ready' AND job.limit_key = :limit_key
ORDER BY job.priority DESC, job.id
LIMIT :room
