-- End attempts that failed: retry or dead letter [FENCE-2] [RETRY-1].
-- Rows: the attempts that were ours, and what becomes of them.
SELECT report.id, report.attempt,
    CASE
        WHEN job.cancel_reason IS NOT NULL THEN 'cancelled'
        WHEN report.is_final THEN 'dead'
        WHEN {{is_last_attempt.sql}} THEN 'dead'
        ELSE 'scheduled'
    END AS next_status,
    COALESCE(report.retry_seconds, {{backoff.sql}}) AS delay_seconds
FROM {{claims.sql}}
FOR UPDATE;
{{retry_or_dead_letter.sql}}
