-- name: lock_topic
-- Take the turn to claim from a limited topic; whoever finds it taken comes back later. Rows: one or none.
SELECT max_running, max_running_per_key, rate_count, rate_seconds, rate_count_per_key, rate_seconds_per_key
FROM holdfast_topics
WHERE topic = :topic AND is_limited AND NOT is_paused
FOR UPDATE SKIP LOCKED

-- name: rate_buckets
-- What rate buckets of a topic hold now, full ones left out. Rows: one per bucket.
SELECT limit_key, tokens, extract(epoch FROM :now - refilled_at)::double precision FROM holdfast_rate_buckets
WHERE topic = :topic AND limit_key = ANY (:keys::text[])

-- name: save_buckets
-- Write down what rate buckets hold now. Rows: none.
INSERT INTO holdfast_rate_buckets (topic, limit_key, tokens, refilled_at)
SELECT :topic, drawn.limit_key, drawn.tokens, :now
FROM unnest(:keys::text[], :tokens::double precision[]) AS drawn (limit_key, tokens)
ON CONFLICT (topic, limit_key) DO UPDATE SET tokens = excluded.tokens, refilled_at = excluded.refilled_at
RETURNING limit_key

-- name: drop_full_buckets
-- Forget the buckets of keys that are full again, as all are once the rate's time has passed. Rows: none.
DELETE FROM holdfast_rate_buckets
WHERE topic = :topic AND limit_key <> '' AND refilled_at <= :now - :seconds * interval '1 second'

-- name: claim
-- Claim up to :capacity ready jobs of topics with one operation each, in that order of topics. The claim is the lease
-- grant [CLAIM-1]. Rows: the claimed jobs.
WITH {{wanted}},
picked AS MATERIALIZED (
    SELECT ready.place
    FROM wanted
    CROSS JOIN LATERAL (
        SELECT job.ctid AS place
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
{{grant}}

-- name: claim_merged
-- Claim up to :capacity ready jobs of topics with several operations, in that order of topics and, within one, of
-- priority and readiness. The claim is the lease grant [CLAIM-1]. Rows: the claimed jobs.
-- A look without locks tells how many of each operation are among the best; so many are locked, past what others have
-- locked meanwhile. Only if that leaves room, because others were faster, every operation is asked for what it has.
WITH {{wanted}},
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
    SELECT ready.place
    FROM turn
    CROSS JOIN LATERAL (
        SELECT job.ctid AS place
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
{{grant}}

-- name: claim_ids
-- Claim the jobs that were picked under the lock of their topic; what was cancelled since then is left out.
-- The claim is the lease grant [CLAIM-1]. Rows: the claimed jobs.
WITH picked AS (
    SELECT job.ctid AS place
    FROM unnest(:ids::bigint[]) AS asked (id)
    JOIN holdfast_jobs AS job ON job.id = asked.id
    WHERE job.status = 'ready'
    FOR UPDATE OF job SKIP LOCKED
)
{{grant}}

-- name: next_operation
-- The next operation of a topic with ready jobs, after :after. Rows: one, NULL when there is none.
SELECT LEAST(
    (SELECT operation FROM holdfast_jobs
     WHERE topic = :topic AND status = 'ready' AND limit_key IS NULL AND operation > :after
     ORDER BY operation LIMIT 1),
    (SELECT operation FROM holdfast_jobs
     WHERE topic = :topic AND status = 'ready' AND limit_key IS NOT NULL AND operation > :after
     ORDER BY operation LIMIT 1))

-- name: ready_without_key
-- The next ready jobs of a topic's operations that have no key. Rows: those of Candidate, in no order.
-- They are locked when they are claimed, which is soon: nobody else claims from this topic now.
SELECT ready.id, NULL::text AS limit_key, ready.priority, extract(epoch FROM ready.ready_at)::double precision,
    wanted.operation
FROM unnest(:operations::text[]) AS wanted (operation)
CROSS JOIN LATERAL (
    SELECT job.id, job.priority, job.ready_at FROM holdfast_jobs AS job
    WHERE job.topic = :topic AND job.operation = wanted.operation AND job.status = 'ready' AND job.limit_key IS NULL
    ORDER BY -job.priority::integer, job.ready_at, job.id
    LIMIT :capacity
) AS ready

-- name: ready_keys
-- The next keys of a topic with ready jobs of the operations, after :after_key: one index probe for each key and operation,
-- however many jobs wait behind it. Rows: keys in order.
WITH RECURSIVE found AS (
    SELECT :after_key::text AS limit_key, 0 AS step
    UNION ALL
    SELECT (SELECT min(next.limit_key)
            FROM unnest(:operations::text[]) AS wanted (operation)
            CROSS JOIN LATERAL (
                SELECT job.limit_key FROM holdfast_jobs AS job
                WHERE job.topic = :topic AND job.operation = wanted.operation AND job.status = 'ready'
                  AND job.limit_key IS NOT NULL AND job.limit_key > found.limit_key
                ORDER BY job.limit_key LIMIT 1
            ) AS next),
        found.step + 1
    FROM found
    WHERE found.limit_key IS NOT NULL AND found.step < :most_keys
)
SELECT limit_key FROM found WHERE limit_key IS NOT NULL AND step > 0

-- name: ready_of_keys
-- The next ready jobs of each key and operation, as many as are asked for. Rows: those of Candidate, in no order.
-- They are locked when they are claimed, which is soon: nobody else claims from this topic now.
SELECT ready.id, room.limit_key, ready.priority, extract(epoch FROM ready.ready_at)::double precision, wanted.operation
FROM unnest(:keys::text[], :rooms::integer[]) AS room (limit_key, free)
CROSS JOIN unnest(:operations::text[]) AS wanted (operation)
CROSS JOIN LATERAL (
    SELECT job.id, job.priority, job.ready_at FROM holdfast_jobs AS job
    WHERE job.topic = :topic AND job.operation = wanted.operation AND job.status = 'ready'
      AND job.limit_key = room.limit_key
    ORDER BY -job.priority::integer, job.ready_at, job.id
    LIMIT room.free
) AS ready

-- name: promote
-- Let scheduled jobs whose time has come be claimed: they became ready when they were due. Rows: how many.
WITH due AS (
    SELECT id FROM holdfast_jobs
    WHERE status = 'scheduled' AND run_at <= :now
    ORDER BY run_at
    LIMIT :limit
    FOR UPDATE SKIP LOCKED
)
UPDATE holdfast_jobs AS job SET status = 'ready', ready_at = job.run_at FROM due WHERE job.id = due.id
RETURNING job.id

-- name: next_due
-- Seconds until the next scheduled job or suspect is due, NULL when there is none, and whether a suspect waits. Rows: one.
-- What someone wrote as infinity is far ahead, or due.
SELECT extract(epoch FROM CASE min(due.run_at) WHEN 'infinity' THEN '9999-12-31 00:00:00+00'::timestamptz
        WHEN '-infinity' THEN '1970-01-01 00:00:00+00' ELSE min(due.run_at) END - :now)::double precision,
    EXISTS (SELECT FROM holdfast_jobs WHERE status = 'suspect' AND run_at <= :now)
FROM (
    SELECT min(run_at) AS run_at FROM holdfast_jobs WHERE status = 'scheduled'
    UNION ALL
    SELECT min(run_at) FROM holdfast_jobs WHERE status = 'suspect' AND run_at > :now
) AS due
