-- Claim up to :capacity ready jobs of :topics, in that order of topics. The claim is the lease grant [CLAIM-1].
-- Rows: the claimed jobs. Limited topics are left to claim_limited.
WITH wanted AS (
    SELECT t.topic
    FROM unnest(:topics::text[]) WITH ORDINALITY AS t (topic, place)
    WHERE NOT EXISTS (
        SELECT FROM holdfast_topics AS known WHERE known.topic = t.topic AND (known.is_paused OR known.is_limited))
    ORDER BY t.place
),
picked AS MATERIALIZED (
    SELECT ready.id
    FROM wanted
    CROSS JOIN LATERAL (
        SELECT job.id
        FROM holdfast_jobs AS job
        WHERE job.topic = wanted.topic AND job.status = 'ready' AND job.limit_key IS NULL
        ORDER BY job.priority DESC, job.id
        LIMIT :capacity
        FOR UPDATE SKIP LOCKED
    ) AS ready
    LIMIT :capacity
)
{{grant.sql}}
