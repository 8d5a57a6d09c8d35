-- End attempts that are known to have begun and whose worker was lost, as if it had reported a failure [REAP-1] [RETRY-1].
-- Their jobs run under test again [SUSPECT-1]. Rows: as for fail.
SELECT job.id, job.attempt,
    CASE
        WHEN job.cancel_reason IS NOT NULL THEN 'cancelled'
        WHEN {{is_last_attempt.sql}} THEN 'dead'
        ELSE 'suspect'
    END AS next_status,
    {{backoff.sql}} AS delay_seconds,
    'worker lease expired' AS error,
    max(0, CAST((julianday(:now) - julianday(job.started_at)) * 86400000 AS INTEGER)) AS duration_ms
FROM holdfast_jobs AS job
WHERE job.status = 'running' AND job.lease_until < :now AND {{is_charged.sql}}
ORDER BY job.lease_until
LIMIT :limit;
{{retry_or_dead_letter.sql}}
