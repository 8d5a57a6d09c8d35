-- Remove what has come to its end and tell the history of it, as its workload has it [FENCE-2]; nothing is told of rows
-- without an engine. Rows: the claims that were ours.
WITH done AS (
    DELETE FROM holdfast_jobs AS job
    USING unnest(:ids::bigint[], :attempts::integer[], :engines::text[], :instance_ids::text[], :operations::text[],
        :statuses::text[], :durations::bigint[], :inputs::text[], :outputs::text[], :errors::text[],
        :correlation_ids::text[], :item_ids::text[], :deliveries::integer[])
        AS report (id, attempt, engine, instance_id, operation, status, duration_ms, input, output, error,
            correlation_id, item_id, delivery)
    WHERE job.id = report.id AND job.attempt = report.attempt AND job.locked_by = :worker
    RETURNING job.id, job.attempt, report.engine, report.instance_id, report.operation, report.status,
        report.duration_ms, report.input, report.output, report.error, report.correlation_id, report.item_id,
        report.delivery
),
told AS (
    INSERT INTO holdfast_history
        (engine, instance_id, operation, status, duration_ms, input, output, error, created_at, correlation_id, item_id,
         attempt)
    SELECT engine, instance_id, operation, status, duration_ms, input, output, error, :now, correlation_id, item_id,
        delivery
    FROM done
    WHERE engine IS NOT NULL
)
SELECT id, attempt FROM done
