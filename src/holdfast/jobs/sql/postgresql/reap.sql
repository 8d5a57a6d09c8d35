-- End attempts that are known to have begun and whose worker was lost, as if it had reported a failure [REAP-1] [RETRY-1].
-- Their jobs run under test again [SUSPECT-1]. Rows: as for fail.
WITH report AS (
    SELECT job.id, job.attempt, 'worker lease expired' AS error, NULL::double precision AS retry_seconds, false AS is_final,
        (extract(epoch FROM :now - job.started_at) * 1000)::bigint AS duration_ms,
        job.failures, job.max_attempts, job.retry_base_seconds,
        job.retry_max_seconds, job.cancel_reason, 'suspect' AS retry_status
    FROM holdfast_jobs AS job
    WHERE job.status = 'running' AND job.lease_until < :now AND {{is_charged.sql}}
    LIMIT :limit
    FOR UPDATE OF job SKIP LOCKED
),
{{retry_or_dead_letter.sql}}
