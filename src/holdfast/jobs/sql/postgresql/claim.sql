-- Claim up to :capacity ready jobs of topics with one operation each, in that order of topics. The claim is the lease
-- grant [CLAIM-1]. Rows: the claimed jobs.
WITH {{wanted.sql}},
picked AS MATERIALIZED (
    SELECT ready.id
    FROM wanted
    CROSS JOIN LATERAL (
        SELECT job.id
        FROM holdfast_jobs AS job
        WHERE job.topic = wanted.topic AND job.operation = wanted.operation
          AND job.status = 'ready' AND job.limit_key IS NULL
          AND (-job.priority::integer, job.ready_at, job.id)
            > (wanted.after_rank, wanted.after_ready_at, wanted.after_id)
        ORDER BY -job.priority::integer, job.ready_at, job.id
        LIMIT wanted.most
        FOR UPDATE SKIP LOCKED
    ) AS ready
    LIMIT :capacity
)
{{grant.sql}}
