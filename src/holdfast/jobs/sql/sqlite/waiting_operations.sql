-- Which of the operations are of an open topic and have something to claim: read without a lock, so that idle workers
-- disturb nobody. Rows: topics and operations, in the order asked.
SELECT json_extract(asked.value, '$[0]'), json_extract(asked.value, '$[1]')
FROM json_each(:wanted) AS asked
WHERE NOT EXISTS (SELECT 1 FROM holdfast_topics AS known
        WHERE known.topic = json_extract(asked.value, '$[0]') AND (known.is_paused OR known.is_limited))
    AND EXISTS (SELECT 1 FROM holdfast_jobs AS job
        WHERE job.topic = json_extract(asked.value, '$[0]') AND job.operation = json_extract(asked.value, '$[1]')
            AND job.status = 'ready' AND job.limit_key IS NULL)
ORDER BY asked.key
