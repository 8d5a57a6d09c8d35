-- How many jobs of each topic are in each status, and how long the oldest ready one has waited.
SELECT topic, status, count(*) AS jobs,
    TIMESTAMPDIFF(MICROSECOND, min(CASE WHEN status = 'ready' THEN COALESCE(run_at, created_at) END), :now) / 1e6
        AS oldest_seconds
FROM holdfast_jobs
GROUP BY topic, status
ORDER BY topic, status
