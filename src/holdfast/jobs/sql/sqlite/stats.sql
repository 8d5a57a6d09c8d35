-- How many jobs of each topic and operation are in each status, and how long the oldest ready one has waited.
SELECT topic, operation, status, count(*) AS jobs,
    (julianday(:now) - julianday(min(CASE WHEN status = 'ready' THEN COALESCE(ready_at, created_at) END))) * 86400.0
        AS oldest_seconds
FROM holdfast_jobs
GROUP BY topic, operation, status
ORDER BY topic, operation, status
