-- name: lock_topic
-- Take the turn to claim from a limited topic; whoever finds it taken comes back later. Rows: one or none.
SELECT max_running, max_running_per_key, rate_count, rate_seconds, rate_count_per_key, rate_seconds_per_key
FROM holdfast_topics
WHERE topic = :topic AND is_limited AND NOT is_paused
FOR UPDATE SKIP LOCKED

-- name: rate_buckets
-- What rate buckets of a topic hold now, full ones left out. Rows: one per bucket.
SELECT bucket.limit_key, bucket.tokens, TIMESTAMPDIFF(MICROSECOND, bucket.refilled_at, :now) / 1e6
FROM JSON_TABLE(:batch, '$[*]' COLUMNS (
    limit_key VARCHAR(200) CHARACTER SET utf8mb4 COLLATE {{key_collation}} PATH '$.limit_key')) AS asked
STRAIGHT_JOIN holdfast_rate_buckets AS bucket FORCE INDEX (PRIMARY)
    ON bucket.topic = :topic AND bucket.limit_key = asked.limit_key

-- name: save_buckets
-- Write down what rate buckets hold now. Rows: none.
INSERT INTO holdfast_rate_buckets (topic, limit_key, tokens, refilled_at)
SELECT :topic, drawn.limit_key, drawn.tokens, :now
FROM JSON_TABLE(:batch, '$[*]' COLUMNS (
    limit_key VARCHAR(200) CHARACTER SET utf8mb4 COLLATE {{key_collation}} PATH '$.limit_key', tokens DOUBLE PATH '$.tokens')) AS drawn
ON DUPLICATE KEY UPDATE tokens = VALUES(tokens), refilled_at = VALUES(refilled_at)

-- name: drop_full_buckets
-- Forget the buckets of keys that are full again, as all are once the rate's time has passed. Rows: none.
DELETE FROM holdfast_rate_buckets
WHERE topic = :topic AND limit_key <> '' AND TIMESTAMPDIFF(MICROSECOND, refilled_at, :now) / 1e6 >= :seconds

-- name: claim
-- Claim up to :capacity ready jobs of one operation. The claim is the lease grant [CLAIM-1]. Rows: the claimed jobs.
-- Limited topics are left to claim_limited. Rows that others claim are passed by, so nobody waits.
SELECT {{claimed_columns}}
FROM holdfast_jobs AS job FORCE INDEX (holdfast_jobs_by_key)
WHERE job.topic = :topic AND job.operation = :operation AND job.status = 'ready' AND job.limit_key IS NULL
    AND NOT EXISTS (SELECT 1 FROM holdfast_topics AS known
        WHERE known.topic = :topic AND (known.is_paused OR known.is_limited))
ORDER BY job.priority DESC, job.ready_at, job.id
LIMIT :capacity
FOR UPDATE SKIP LOCKED;
{{grant}}

-- name: claim_ids
-- Claim the jobs that were picked under the lock of their topic; what was cancelled since then is left out.
-- The claim is the lease grant [CLAIM-1]. Rows: the claimed jobs.
SELECT {{claimed_columns}}
FROM {{asked}}
WHERE job.status = 'ready'
FOR UPDATE SKIP LOCKED;
{{grant}}

-- name: next_operation
-- The next operation of a topic with ready jobs, after :after. Rows: one, NULL when there is none.
SELECT (SELECT operation FROM holdfast_jobs FORCE INDEX (holdfast_jobs_by_key)
    WHERE status = 'ready' AND topic = :topic AND operation > :after
    ORDER BY operation LIMIT 1)

-- name: waiting_operations
-- Which of the operations are of an open topic and have something to claim: read without a lock, so that idle workers
-- disturb nobody. Rows: topics and operations, in the order asked.
SELECT asked.topic, asked.operation
FROM JSON_TABLE(:wanted, '$[*]' COLUMNS (place FOR ORDINALITY,
    topic VARCHAR(150) CHARACTER SET utf8mb4 COLLATE {{key_collation}} PATH '$[0]',
    operation VARCHAR(200) CHARACTER SET utf8mb4 COLLATE {{key_collation}} PATH '$[1]')) AS asked
LEFT JOIN holdfast_topics AS known ON known.topic = asked.topic
WHERE COALESCE(known.is_paused, 0) = 0 AND COALESCE(known.is_limited, 0) = 0
    AND (SELECT job.id FROM holdfast_jobs AS job FORCE INDEX (holdfast_jobs_by_key)
        WHERE job.status = 'ready' AND job.topic = asked.topic AND job.operation = asked.operation
            AND job.limit_key IS NULL LIMIT 1) IS NOT NULL
ORDER BY asked.place

-- name: ready_without_key
-- The next ready jobs of an operation that have no key; repeated for a number of operations.
-- Rows: those of Candidate.
SELECT job.id, job.limit_key, job.priority, CAST(job.ready_at AS CHAR), job.operation
FROM holdfast_jobs AS job FORCE INDEX (holdfast_jobs_by_key)
WHERE job.topic = :topic AND job.operation = :operation AND job.status = 'ready' AND job.limit_key IS NULL
ORDER BY job.priority DESC, job.ready_at, job.id
LIMIT :room

-- name: ready_keys
-- The keys of the next :most_keys ready jobs of an operation, after :after_key; the caller goes on from the last one.
-- A recursive query would not do: it reads every job of the keys before. Rows: keys in order, with repeats.
SELECT limit_key FROM holdfast_jobs FORCE INDEX (holdfast_jobs_by_key)
WHERE status = 'ready' AND topic = :topic AND operation = :operation AND limit_key > :after_key
ORDER BY limit_key
LIMIT :most_keys

-- name: ready_of_keys
-- The next ready jobs of one key and operation, as many as are asked for; repeated for a number of keys.
-- Rows: those of Candidate.
-- They are locked when they are claimed, which is soon: nobody else claims from this topic now.
SELECT job.id, job.limit_key, job.priority, CAST(job.ready_at AS CHAR), job.operation
FROM holdfast_jobs AS job FORCE INDEX (holdfast_jobs_by_key)
WHERE job.topic = :topic AND job.operation = :operation AND job.status = 'ready' AND job.limit_key = :limit_key
ORDER BY job.priority DESC, job.ready_at, job.id
LIMIT :room

-- name: promote
-- Let scheduled jobs whose time has come be claimed: they became ready when they were due. Rows: their ids.
SELECT id FROM holdfast_jobs FORCE INDEX (holdfast_jobs_due)
WHERE status = 'scheduled' AND run_at <= :now
ORDER BY run_at
LIMIT :limit
FOR UPDATE SKIP LOCKED;
UPDATE holdfast_jobs AS job SET job.status = 'ready', job.ready_at = job.run_at
WHERE job.id IN (:ids) AND job.status = 'scheduled'

-- name: next_due
-- Seconds until the next scheduled job or suspect is due, NULL when there is none, and whether a suspect waits. Rows: one.
SELECT TIMESTAMPDIFF(MICROSECOND, :now, min(due.run_at)) / 1e6,
    EXISTS (SELECT 1 FROM holdfast_jobs WHERE status = 'suspect' AND run_at <= :now)
FROM (
    SELECT min(run_at) AS run_at FROM holdfast_jobs WHERE status = 'scheduled'
    UNION ALL
    SELECT min(run_at) FROM holdfast_jobs WHERE status = 'suspect' AND run_at > :now
) AS due
