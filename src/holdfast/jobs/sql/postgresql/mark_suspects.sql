-- Take back what a lost worker held and nobody knows to have begun: uncharged, and marked, so that it runs under test
-- [SUSPECT-1]. Rows: the claims, and the status they get.
WITH lost AS (
    SELECT job.id, {{is_innocent.sql}} AS is_innocent
    FROM holdfast_jobs AS job
    WHERE job.status = 'running' AND job.lease_until < :now AND NOT {{is_charged.sql}} AND NOT {{is_server_unknown.sql}}
    LIMIT :limit
    FOR UPDATE OF job SKIP LOCKED
)
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
RETURNING job.id, job.attempt, job.status
