-- The next operation of a topic with ready jobs, after :after. Rows: one, NULL when there is none.
SELECT min(operation) FROM (
    SELECT * FROM (SELECT operation FROM holdfast_jobs
        WHERE topic = :topic AND status = 'ready' AND limit_key IS NULL AND operation > :after
        ORDER BY operation LIMIT 1)
    UNION ALL
    SELECT * FROM (SELECT operation FROM holdfast_jobs
        WHERE topic = :topic AND status = 'ready' AND limit_key IS NOT NULL AND operation > :after
        ORDER BY operation LIMIT 1))
