-- The next operation of a topic with ready jobs, after :after. Rows: one, NULL when there is none.
SELECT LEAST(
    (SELECT operation FROM holdfast_jobs
     WHERE topic = :topic AND status = 'ready' AND limit_key IS NULL AND operation > :after
     ORDER BY operation LIMIT 1),
    (SELECT operation FROM holdfast_jobs
     WHERE topic = :topic AND status = 'ready' AND limit_key IS NOT NULL AND operation > :after
     ORDER BY operation LIMIT 1))
