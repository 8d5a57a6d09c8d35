-- The next keys of a topic with ready jobs of the operations, after :after_key: one index probe for each key and operation,
-- however many jobs wait behind it. Rows: keys in order.
WITH RECURSIVE found AS (
    SELECT :after_key::text AS limit_key, 0 AS step
    UNION ALL
    SELECT (SELECT min(next.limit_key)
            FROM unnest(:operations::text[]) AS wanted (operation)
            CROSS JOIN LATERAL (
                SELECT job.limit_key FROM holdfast_jobs AS job
                WHERE job.topic = :topic AND job.operation = wanted.operation AND job.status = 'ready'
                  AND job.limit_key IS NOT NULL AND job.limit_key > found.limit_key
                ORDER BY job.limit_key LIMIT 1
            ) AS next),
        found.step + 1
    FROM found
    WHERE found.limit_key IS NOT NULL AND found.step < :most_keys
)
SELECT limit_key FROM found WHERE limit_key IS NOT NULL AND step > 0
