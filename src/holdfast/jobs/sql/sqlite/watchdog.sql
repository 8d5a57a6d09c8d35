-- name: reap
-- End attempts that are known to have begun and whose worker was lost, as if it had reported a failure [REAP-1] [RETRY-1].
-- Their jobs run under test again [SUSPECT-1]. Rows: as for fail.
SELECT job.id, job.attempt,
    CASE
        WHEN job.cancel_reason IS NOT NULL THEN 'cancelled'
        WHEN {{is_last_attempt}} THEN 'dead'
        ELSE 'suspect'
    END AS next_status,
    {{backoff}} AS delay_seconds,
    'worker lease expired' AS error,
    max(0, CAST((julianday(:now) - julianday(job.started_at)) * 86400000 AS INTEGER)) AS duration_ms
FROM holdfast_jobs AS job
WHERE job.status = 'running' AND job.lease_until < :now AND {{is_charged}}
ORDER BY job.lease_until
LIMIT :limit;
{{retry_or_dead_letter}}

-- name: mark_suspects
-- Take back what a lost worker held and nobody knows to have begun: uncharged, and marked, so that it runs under test
-- [SUSPECT-1]. Rows: the claims, and the status they get.
SELECT job.id, job.attempt,
    CASE WHEN job.suspicions = 0 AND {{is_innocent}} THEN 'ready' ELSE 'suspect' END AS next_status,
    job.suspicions + CASE WHEN {{is_innocent}} THEN 0 ELSE 1 END AS suspicions
FROM holdfast_jobs AS job
WHERE job.status = 'running' AND job.lease_until < :now AND NOT {{is_charged}} AND NOT {{is_server_unknown}}
ORDER BY job.lease_until
LIMIT :limit;
UPDATE holdfast_jobs AS job
SET status = report.next_status,
    suspicions = report.suspicions,
    run_at = :now,
    ready_at = :now,
    locked_by = NULL,
    lease_until = NULL,
    last_error = 'the worker that held it was lost'
FROM {{batch}} AS report
WHERE job.id = report.id AND job.attempt = report.attempt AND job.status = 'running'

-- name: suspects
-- Of each handler and key the suspect that has waited longest, if its topic is not paused. There are never many.
-- Rows: id, topic, operation, key, whether the topic is limited; who has waited longest first.
SELECT waiting.id, waiting.topic, waiting.operation, waiting.limit_key, COALESCE(known.is_limited, 0)
FROM (
    SELECT id, topic, operation, limit_key, run_at,
        row_number() OVER (PARTITION BY topic, operation, limit_key ORDER BY run_at, id) AS place
    FROM holdfast_jobs
    WHERE status = 'suspect' AND run_at <= :now
) AS waiting
LEFT JOIN holdfast_topics AS known ON known.topic = waiting.topic
WHERE waiting.place = 1 AND NOT COALESCE(known.is_paused, 0)
ORDER BY waiting.run_at, waiting.id

-- name: release_suspect
-- Let one suspect be claimed, in the transaction that claims it: nobody else sees it ready. Rows: one, or none when another
-- worker was first.
SELECT job.id, job.suspicions
{{asked}}
WHERE job.status = 'suspect' AND job.run_at <= :now;
UPDATE holdfast_jobs AS job SET status = 'ready'
FROM {{batch}} AS report
WHERE job.id = report.id

-- name: prune
-- Forget ended jobs: done ones when their window has passed, others that are older than :seconds, dead ones of these
-- once no dead letter of theirs is open. The history has its own retention. Rows: their ids.
SELECT id FROM holdfast_jobs AS job
WHERE status IN ('dead', 'cancelled', 'done')
    AND NOT (status = 'dead' AND EXISTS (
        SELECT 1 FROM holdfast_dead_letters AS letter
        WHERE letter.item_id = 'job-' || job.id AND letter.status = 'Pending'))
    AND (julianday(:now) - julianday(COALESCE(run_at, created_at))) * 86400.0
        > CASE WHEN status = 'done' THEN COALESCE(unique_seconds, 0) ELSE :seconds END
ORDER BY id
LIMIT :limit;
DELETE FROM holdfast_jobs WHERE id IN (SELECT id FROM {{batch}}) AND status IN ('dead', 'cancelled', 'done')

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
DELETE FROM holdfast_job_servers WHERE julianday(:now) - julianday(seen_at) NOT BETWEEN -1.0 / 24 AND 1

-- name: choose_receipt_key
-- Keep the key that receipts are signed with, unless there is one. Rows: none.
INSERT INTO holdfast_job_keys (name, secret) VALUES ('receipts', :secret) ON CONFLICT (name) DO NOTHING
