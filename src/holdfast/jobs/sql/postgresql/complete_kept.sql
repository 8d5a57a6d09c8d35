-- End jobs that succeeded and whose key stays taken for a while: the row stays as the holder of the key [FENCE-2].
WITH done AS (
    UPDATE holdfast_jobs AS job
    SET status = 'done', locked_by = NULL, lease_until = NULL, run_at = :now, payload = ''
    FROM unnest(:ids::bigint[], :attempts::integer[], :durations::bigint[], :outputs::text[])
        AS report (id, attempt, duration_ms, output),
        holdfast_jobs AS was
    WHERE job.id = report.id AND job.attempt = report.attempt AND job.locked_by = :worker AND was.id = job.id
    RETURNING job.id, job.topic, job.operation, was.payload, job.correlation_id, job.instance_id, job.attempt,
        report.duration_ms, report.output
),
told AS (
    INSERT INTO holdfast_history
        (engine, instance_id, operation, status, duration_ms, input, output, created_at, correlation_id, item_id, attempt)
    SELECT 'jobs:' || topic, COALESCE(instance_id, 'publisher'), operation, 'Succeeded', duration_ms, payload, output,
        :now, COALESCE(correlation_id, 'job-' || id), 'job-' || id, attempt
    FROM done
)
SELECT id, attempt FROM done
