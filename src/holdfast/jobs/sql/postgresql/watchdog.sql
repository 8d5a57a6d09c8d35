-- name: reap
-- End attempts that are known to have begun and whose worker was lost, as if it had reported a failure [REAP-1] [RETRY-1].
-- Their jobs run under test again [SUSPECT-1], of which workers that rest are told. Rows: as for fail.
WITH report AS (
    SELECT job.id, job.attempt, 'worker lease expired' AS error, NULL::double precision AS retry_seconds, false AS is_final,
        (extract(epoch FROM :now - CASE WHEN isfinite(job.started_at) THEN job.started_at ELSE :now END) * 1000)::bigint
            AS duration_ms,
        job.failures, job.max_attempts, job.retry_base_seconds,
        job.retry_max_seconds, job.cancel_reason, job.locked_by AS worker, 'suspect' AS retry_status
    FROM holdfast_jobs AS job
    WHERE job.status = 'running' AND job.lease_until < :now AND {{is_charged}}
    LIMIT :limit
    FOR UPDATE OF job SKIP LOCKED
),
{{retry_or_dead_letter}}
SELECT id, attempt, status, CASE WHEN status = 'suspect' THEN pg_notify('holdfast_jobs', topic) END FROM ended

-- name: mark_suspects
-- Take back what a lost worker held and nobody knows to have begun: uncharged, and marked, so that it runs under test
-- [SUSPECT-1]. Workers that rest are woken, for whoever does this may be unable to run them. Rows: the claims, and the
-- status they get.
WITH lost AS (
    SELECT job.id, {{is_innocent}} AS is_innocent
    FROM holdfast_jobs AS job
    WHERE job.status = 'running' AND job.lease_until < :now AND NOT {{is_charged}} AND NOT {{is_server_unknown}}
    LIMIT :limit
    FOR UPDATE OF job SKIP LOCKED
),
given_back AS (
    UPDATE holdfast_jobs AS job
    SET status = CASE WHEN lost.is_innocent AND job.suspicions = 0 THEN 'ready' ELSE 'suspect' END,
        suspicions = job.suspicions + CASE WHEN lost.is_innocent THEN 0 ELSE 1 END,
        run_at = :now,
        ready_at = :now,
        locked_by = NULL,
        lease_until = NULL,
        last_error = 'the worker that held it was lost'
    FROM lost
    WHERE job.id = lost.id
    RETURNING job.id, job.attempt, job.status, job.topic
)
SELECT id, attempt, status, pg_notify('holdfast_jobs', topic) FROM given_back

-- name: suspects
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

-- name: release_suspect
-- Let one suspect be claimed, in the transaction that claims it: nobody else sees it ready. Rows: one, or none when another
-- worker was first.
UPDATE holdfast_jobs AS job SET status = 'ready'
FROM unnest(:ids::bigint[]) AS asked (id)
WHERE job.id = asked.id AND job.status = 'suspect' AND job.run_at <= :now
RETURNING job.id, job.suspicions

-- name: prune
-- Forget ended jobs: done ones when their window has passed, others that are older than :seconds, dead ones of these
-- once no dead letter of theirs is open. The history has its own retention. Rows: how many.
DELETE FROM holdfast_jobs
WHERE id IN (
    SELECT id FROM holdfast_jobs AS job
    WHERE status IN ('dead', 'cancelled', 'done')
        AND NOT (status = 'dead' AND EXISTS (
            SELECT FROM holdfast_dead_letters AS letter
            WHERE letter.item_id = 'job-' || job.id AND letter.status = 'Pending'))
        AND COALESCE(run_at, created_at)
            + CASE WHEN status = 'done' THEN COALESCE(unique_seconds, 0) ELSE :seconds END * interval '1 second' < :now
    ORDER BY id
    LIMIT :limit
    FOR UPDATE SKIP LOCKED
)
RETURNING id

-- name: announce
-- Tell that a worker is there, of which application, and what it can run. Rows: none.
INSERT INTO holdfast_workers (id, host, pid, operations, started_at, seen_at, application)
VALUES (:worker, :host, :pid, :operations, :now, :now, :application)
ON CONFLICT (id) DO UPDATE SET operations = excluded.operations, seen_at = excluded.seen_at

-- name: server_seen
-- Note that a server of remote workers is alive. Rows: none.
INSERT INTO holdfast_job_servers (name, seen_at) VALUES (:name, :now)
ON CONFLICT (name) DO UPDATE SET seen_at = excluded.seen_at

-- name: remote_worker
-- Note which server a remote worker is connected to. Rows: none.
INSERT INTO holdfast_remote_workers (owner, server) VALUES (:owner, :server)
ON CONFLICT (owner) DO UPDATE SET server = excluded.server

-- name: forget_servers
-- Forget servers that are long gone. Rows: none.
DELETE FROM holdfast_job_servers WHERE seen_at > :now + interval '1 hour' OR seen_at < :now - interval '1 day'

-- name: choose_receipt_key
-- Keep the key that receipts are signed with, unless there is one. Rows: none.
INSERT INTO holdfast_job_keys (name, secret) VALUES ('receipts', :secret) ON CONFLICT (name) DO NOTHING
