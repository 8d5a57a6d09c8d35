-- Cancel waiting jobs at once, ask the workers of running ones to stop [FENCE-2]. Rows: what was changed, and the status now.
WITH changed AS (
    UPDATE holdfast_jobs AS job
    SET status = CASE WHEN job.status = 'running' THEN 'running' ELSE 'cancelled' END,
        held_key = CASE WHEN job.status = 'running' THEN job.held_key END,
        run_at = CASE WHEN job.status = 'running' THEN job.run_at ELSE :now END,
        cancel_reason = :reason
    FROM unnest(:ids::bigint[]) AS asked (id)
    WHERE job.id = asked.id AND job.status IN ('ready', 'scheduled', 'suspect', 'running')
    RETURNING job.*
),
told AS (
    INSERT INTO holdfast_history
        (engine, instance_id, operation, status, duration_ms, input, error, created_at, correlation_id, item_id, attempt)
    SELECT 'jobs:' || topic, COALESCE(instance_id, 'publisher'), operation, 'Failed', 0, payload, 'cancelled: ' || cancel_reason,
        :now, COALESCE(correlation_id, 'job-' || id), 'job-' || id, attempt
    FROM changed
    WHERE status = 'cancelled'
)
SELECT id, status FROM changed
