-- End attempts that failed: retry or dead letter [FENCE-2] [RETRY-1]. Rows: the attempts that were ours, and what became of them.
WITH report AS (
    SELECT report.id, report.attempt, report.error, report.retry_seconds, report.is_final, report.duration_ms,
        job.failures, job.max_attempts, job.retry_base_seconds,
        job.retry_max_seconds, job.cancel_reason, 'scheduled' AS retry_status
    FROM unnest(:ids::bigint[], :attempts::integer[], :errors::text[], :retry_seconds::double precision[],
        :finals::boolean[], :durations::bigint[])
        AS report (id, attempt, error, retry_seconds, is_final, duration_ms)
    JOIN holdfast_jobs AS job ON job.id = report.id AND job.attempt = report.attempt AND job.locked_by = :worker
    ORDER BY report.id
    FOR UPDATE OF job
),
{{retry_or_dead_letter.sql}}
