-- The next keys of an operation with ready jobs, after :after_key: one index probe each, however many jobs wait behind it.
-- Rows: keys in order.
WITH RECURSIVE found (limit_key, step) AS (
    SELECT (SELECT job.limit_key FROM holdfast_jobs AS job
            WHERE job.topic = :topic AND job.operation = :operation AND job.status = 'ready' AND job.limit_key IS NOT NULL
                AND job.limit_key > :after_key
            ORDER BY job.limit_key LIMIT 1), 1
    UNION ALL
    SELECT (SELECT job.limit_key FROM holdfast_jobs AS job
            WHERE job.topic = :topic AND job.operation = :operation AND job.status = 'ready' AND job.limit_key IS NOT NULL
                AND job.limit_key > found.limit_key
            ORDER BY job.limit_key LIMIT 1),
        found.step + 1
    FROM found
    WHERE found.limit_key IS NOT NULL AND found.step < :most_keys
)
SELECT limit_key FROM found WHERE limit_key IS NOT NULL ORDER BY limit_key
