-- How many jobs of each topic and operation are in each status, and how long the oldest ready one has waited.
SELECT topic, operation, status, count(*) AS jobs,
    TIMESTAMPDIFF(MICROSECOND, min(CASE WHEN status = 'ready' THEN GREATEST(ready_at, created_at) END), :now) / 1e6
        AS oldest_seconds
FROM holdfast_jobs
GROUP BY topic, operation, status
ORDER BY topic, operation, status
