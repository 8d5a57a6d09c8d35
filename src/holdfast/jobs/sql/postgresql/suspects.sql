-- Of each handler and key the suspect that has waited longest, if its topic is not paused. There are never many.
-- Rows: id, topic, operation, key, whether the topic is limited; who has waited longest first.
SELECT waiting.id, waiting.topic, waiting.operation, waiting.limit_key, COALESCE(known.is_limited, false)
FROM (
    SELECT id, topic, operation, limit_key, run_at,
        row_number() OVER (PARTITION BY topic, operation, limit_key ORDER BY run_at, id) AS place
    FROM holdfast_jobs
    WHERE status = 'suspect' AND run_at <= :now
) AS waiting
LEFT JOIN holdfast_topics AS known ON known.topic = waiting.topic
WHERE waiting.place = 1 AND NOT COALESCE(known.is_paused, false)
ORDER BY waiting.run_at, waiting.id
