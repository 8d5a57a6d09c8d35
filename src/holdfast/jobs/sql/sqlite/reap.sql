-- End attempts whose lease has passed, as if their workers had reported it [REAP-1] [RETRY-1]. Rows: as for fail.
SELECT job.id, job.attempt,
    CASE
        WHEN job.cancel_reason IS NOT NULL THEN 'cancelled'
        WHEN {{is_last_attempt.sql}} THEN 'dead'
        ELSE 'scheduled'
    END AS next_status,
    {{backoff.sql}} AS delay_seconds,
    'worker lease expired' AS error,
    max(0, CAST((julianday(:now) - julianday(job.started_at)) * 86400000 AS INTEGER)) AS duration_ms
FROM holdfast_jobs AS job
WHERE job.status = 'running' AND job.lease_until < :now
ORDER BY job.lease_until
LIMIT :limit;
{{retry_or_dead_letter.sql}}
