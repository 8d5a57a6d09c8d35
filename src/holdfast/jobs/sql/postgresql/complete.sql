-- End jobs that succeeded: they become history in the same statement [FENCE-2]. Rows: the ids that were ours.
-- The status is left out of the guard on purpose: with stale statistics it would lead the planner to the lease index.
WITH done AS (
    DELETE FROM holdfast_jobs AS job
    USING unnest(:ids::bigint[], :attempts::integer[], :durations::bigint[], :outputs::text[])
        AS report (id, attempt, duration_ms, output)
    WHERE job.id = report.id AND job.attempt = report.attempt AND job.locked_by = :worker
    RETURNING job.id, job.topic, job.operation, job.payload, job.correlation_id, job.instance_id, job.attempt,
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
