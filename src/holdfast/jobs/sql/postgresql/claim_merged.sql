-- Claim up to :capacity ready jobs of topics with several operations, in that order of topics and, within one, of
-- priority and readiness. The claim is the lease grant [CLAIM-1]. Rows: the claimed jobs.
-- A look without locks tells how many of each operation are among the best; so many are locked, past what others have
-- locked meanwhile. Only if that leaves room, because others were faster, every operation is asked for what it has.
WITH {{wanted.sql}},
best AS MATERIALIZED (
    SELECT wanted.topic, wanted.operation, wanted.after_rank, wanted.after_ready_at, wanted.after_id
    FROM wanted
    CROSS JOIN LATERAL (
        SELECT -job.priority::integer AS rank, job.ready_at, job.id
        FROM holdfast_jobs AS job
        WHERE job.topic = wanted.topic AND job.operation = wanted.operation
          AND job.status = 'ready' AND job.limit_key IS NULL
          AND (-job.priority::integer, job.ready_at, job.id)
            > (wanted.after_rank, wanted.after_ready_at, wanted.after_id)
        ORDER BY -job.priority::integer, job.ready_at, job.id
        LIMIT wanted.most
    ) AS ready
    ORDER BY wanted.place, ready.rank, ready.ready_at, ready.id
    LIMIT :capacity
),
turn AS (
    SELECT topic, operation, after_rank, after_ready_at, after_id, count(*) AS jobs
    FROM best
    GROUP BY topic, operation, after_rank, after_ready_at, after_id
    UNION ALL
    SELECT topic, operation, after_rank, after_ready_at, after_id, most
    FROM wanted
),
picked AS MATERIALIZED (
    SELECT ready.id
    FROM turn
    CROSS JOIN LATERAL (
        SELECT job.id
        FROM holdfast_jobs AS job
        WHERE job.topic = turn.topic AND job.operation = turn.operation
          AND job.status = 'ready' AND job.limit_key IS NULL
          AND (-job.priority::integer, job.ready_at, job.id)
            > (turn.after_rank, turn.after_ready_at, turn.after_id)
        ORDER BY -job.priority::integer, job.ready_at, job.id
        LIMIT turn.jobs
        FOR UPDATE SKIP LOCKED
    ) AS ready
    LIMIT :capacity
)
{{grant.sql}}
