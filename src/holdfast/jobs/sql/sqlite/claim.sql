-- name: lock_topic
-- Take the turn to claim from a limited topic: the transaction has the write lock. Rows: one or none.
SELECT max_running, max_running_per_key, rate_count, rate_seconds, rate_count_per_key, rate_seconds_per_key
FROM holdfast_topics
WHERE topic = :topic AND is_limited AND NOT is_paused

-- name: rate_buckets
-- What rate buckets of a topic hold now, full ones left out. Rows: one per bucket.
SELECT limit_key, tokens, (julianday(:now) - julianday(refilled_at)) * 86400.0 FROM holdfast_rate_buckets
WHERE topic = :topic AND limit_key IN (SELECT json_extract(value, '$.limit_key') FROM json_each(:batch))

-- name: save_buckets
-- Write down what rate buckets hold now. Rows: none.
INSERT INTO holdfast_rate_buckets (topic, limit_key, tokens, refilled_at)
SELECT :topic, json_extract(value, '$.limit_key'), json_extract(value, '$.tokens'), :now
FROM json_each(:batch)
WHERE true
ON CONFLICT (topic, limit_key) DO UPDATE SET tokens = excluded.tokens, refilled_at = excluded.refilled_at

-- name: drop_full_buckets
-- Forget the buckets of keys that are full again, as all are once the rate's time has passed. Rows: none.
DELETE FROM holdfast_rate_buckets
WHERE topic = :topic AND limit_key <> '' AND (julianday(:now) - julianday(refilled_at)) * 86400.0 >= :seconds

-- name: claim
-- Claim up to :capacity ready jobs of one operation. The claim is the lease grant [CLAIM-1]. Rows: the claimed jobs.
-- Limited topics are left to claim_limited.
SELECT {{claimed_columns}}
FROM holdfast_jobs AS job
WHERE job.topic = :topic AND job.operation = :operation AND job.status = 'ready' AND job.limit_key IS NULL
    AND NOT EXISTS (SELECT 1 FROM holdfast_topics AS known
        WHERE known.topic = :topic AND (known.is_paused OR known.is_limited))
ORDER BY job.priority DESC, COALESCE(job.ready_at, job.created_at), job.id
LIMIT :capacity;
{{grant}}

-- name: claim_ids
-- Claim the jobs that were picked under the lock of their topic. The claim is the lease grant [CLAIM-1].
-- Rows: the claimed jobs.
SELECT {{claimed_columns}}
{{asked}}
WHERE job.status = 'ready';
{{grant}}

-- name: next_operation
-- The next operation of a topic with ready jobs, after :after. Rows: one, NULL when there is none.
SELECT min(operation) FROM (
    SELECT * FROM (SELECT operation FROM holdfast_jobs
        WHERE topic = :topic AND status = 'ready' AND limit_key IS NULL AND operation > :after
        ORDER BY operation LIMIT 1)
    UNION ALL
    SELECT * FROM (SELECT operation FROM holdfast_jobs
        WHERE topic = :topic AND status = 'ready' AND limit_key IS NOT NULL AND operation > :after
        ORDER BY operation LIMIT 1))

-- name: waiting_operations
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

-- name: ready_without_key
-- The next ready jobs of an operation that have no key; repeated for a number of operations.
-- Rows: those of Candidate.
SELECT job.id, job.limit_key, CAST(job.priority AS INTEGER), CAST(COALESCE(job.ready_at, job.created_at) AS BLOB),
    job.operation
FROM holdfast_jobs AS job
WHERE job.topic = :topic AND job.operation = :operation AND job.status = 'ready' AND job.limit_key IS NULL
ORDER BY job.priority DESC, COALESCE(job.ready_at, job.created_at), job.id
LIMIT :room

-- name: ready_keys
-- The next keys of an operation with ready jobs, after :after_key: one index probe each, however many jobs wait behind it.
-- Rows: keys in order.
WITH RECURSIVE found (limit_key, step) AS (
    SELECT (SELECT job.limit_key FROM holdfast_jobs AS job
            WHERE job.topic = :topic AND job.operation = :operation AND job.status = 'ready' AND job.limit_key IS NOT NULL
                AND job.limit_key > :after_key
            ORDER BY job.limit_key LIMIT 1), 1
    UNION ALL
    SELECT (SELECT job.limit_key FROM holdfast_jobs AS job
            WHERE job.topic = :topic AND job.operation = :operation AND job.status = 'ready' AND job.limit_key IS NOT NULL
                AND job.limit_key > found.limit_key
            ORDER BY job.limit_key LIMIT 1),
        found.step + 1
    FROM found
    WHERE found.limit_key IS NOT NULL AND found.step < :most_keys
)
SELECT limit_key FROM found WHERE limit_key IS NOT NULL ORDER BY limit_key

-- name: ready_of_keys
-- The next ready jobs of one key and operation, as many as are asked for; repeated for a number of keys.
-- Rows: those of Candidate.
SELECT job.id, job.limit_key, CAST(job.priority AS INTEGER), CAST(COALESCE(job.ready_at, job.created_at) AS BLOB),
    job.operation
FROM holdfast_jobs AS job
WHERE job.topic = :topic AND job.operation = :operation AND job.status = 'ready' AND job.limit_key = :limit_key
ORDER BY job.priority DESC, COALESCE(job.ready_at, job.created_at), job.id
LIMIT :room

-- name: promote
-- Let scheduled jobs whose time has come be claimed: they became ready when they were due. Rows: their ids.
SELECT id FROM holdfast_jobs
WHERE status = 'scheduled' AND run_at <= :now
ORDER BY run_at
LIMIT :limit;
UPDATE holdfast_jobs AS job SET status = 'ready', ready_at = job.run_at
FROM {{batch}} AS due
WHERE job.id = due.id AND job.status = 'scheduled'

-- name: next_due
-- Seconds until the next scheduled job or suspect is due, NULL when there is none, and whether a suspect waits. Rows: one.
SELECT (julianday(min(due.run_at)) - julianday(:now)) * 86400.0,
    EXISTS (SELECT 1 FROM holdfast_jobs WHERE status = 'suspect' AND run_at <= :now)
FROM (
    SELECT min(run_at) AS run_at FROM holdfast_jobs WHERE status = 'scheduled'
    UNION ALL
    SELECT min(run_at) FROM holdfast_jobs WHERE status = 'suspect' AND run_at > :now
) AS due
