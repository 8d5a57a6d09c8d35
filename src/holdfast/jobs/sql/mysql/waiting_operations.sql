-- Which of the operations are of an open topic and have something to claim: read without a lock, so that idle workers
-- disturb nobody. Rows: topics and operations, in the order asked.
SELECT asked.topic, asked.operation
FROM JSON_TABLE(:wanted, '$[*]' COLUMNS (place FOR ORDINALITY, topic VARCHAR(150) PATH '$[0]',
    operation VARCHAR(200) PATH '$[1]')) AS asked
WHERE NOT EXISTS (SELECT 1 FROM holdfast_topics AS known
        WHERE known.topic = asked.topic AND (known.is_paused OR known.is_limited))
    AND (SELECT job.id FROM holdfast_jobs AS job FORCE INDEX (holdfast_jobs_by_key)
        WHERE job.status = 'ready' AND job.topic = asked.topic AND job.operation = asked.operation
            AND job.limit_key IS NULL LIMIT 1) IS NOT NULL
ORDER BY asked.place
