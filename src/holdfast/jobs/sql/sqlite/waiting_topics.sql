-- Which of the topics are open and have something to claim: read without a lock, so that idle workers disturb nobody.
-- Rows: topics, in the order asked.
SELECT asked.value
FROM json_each(:topics) AS asked
WHERE NOT EXISTS (SELECT 1 FROM holdfast_topics AS known
        WHERE known.topic = asked.value AND (known.is_paused OR known.is_limited))
    AND EXISTS (SELECT 1 FROM holdfast_jobs AS job
        WHERE job.topic = asked.value AND job.status = 'ready' AND job.limit_key IS NULL)
ORDER BY asked.key
