-- End attempts whose lease has passed, as if their workers had reported it [REAP-1] [RETRY-1]. Rows: as for fail.
-- Only running jobs have a lease. Attempts that are being reported at this moment are passed by.
SELECT job.id, job.attempt,
    CASE
        WHEN job.cancel_reason IS NOT NULL THEN 'cancelled'
        WHEN {{is_last_attempt.sql}} THEN 'dead'
        ELSE 'scheduled'
    END AS next_status,
    {{backoff.sql}} AS delay_seconds,
    'worker lease expired' AS error,
    GREATEST(0, TIMESTAMPDIFF(MICROSECOND, job.started_at, :now) DIV 1000) AS duration_ms
FROM holdfast_jobs AS job FORCE INDEX (holdfast_jobs_lease)
WHERE job.lease_until < :now
ORDER BY job.lease_until
LIMIT :limit
FOR UPDATE SKIP LOCKED;
{{retry_or_dead_letter.sql}}
