-- The next operation of a topic with ready jobs, after :after. Rows: one, NULL when there is none.
SELECT (SELECT operation FROM holdfast_jobs FORCE INDEX (holdfast_jobs_by_key)
    WHERE status = 'ready' AND topic = :topic AND operation > :after
    ORDER BY operation LIMIT 1)
