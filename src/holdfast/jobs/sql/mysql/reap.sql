-- End attempts that are known to have begun and whose worker was lost, as if it had reported a failure [REAP-1] [RETRY-1].
-- Their jobs run under test again [SUSPECT-1]. Rows: as for fail.
-- Only running jobs have a lease. Attempts that are being reported at this moment are passed by.
SELECT job.id, job.attempt,
    CASE
        WHEN job.cancel_reason IS NOT NULL THEN 'cancelled'
        WHEN {{is_last_attempt.sql}} THEN 'dead'
        ELSE 'suspect'
    END AS next_status,
    {{backoff.sql}} AS delay_seconds,
    'worker lease expired' AS error,
    GREATEST(0, TIMESTAMPDIFF(MICROSECOND, job.started_at, :now) DIV 1000) AS duration_ms
FROM holdfast_jobs AS job FORCE INDEX (holdfast_jobs_lease)
WHERE job.lease_until < :now AND {{is_charged.sql}}
ORDER BY job.lease_until
LIMIT :limit
FOR UPDATE SKIP LOCKED;
{{retry_or_dead_letter.sql}}
