-- The next ready jobs of each key and operation, as many as are asked for. Rows: those of Candidate, in no order.
-- They are locked when they are claimed, which is soon: nobody else claims from this topic now.
SELECT ready.id, room.limit_key, ready.priority, ready.ready_at, wanted.operation
FROM unnest(:keys::text[], :rooms::integer[]) AS room (limit_key, free)
CROSS JOIN unnest(:operations::text[]) AS wanted (operation)
CROSS JOIN LATERAL (
    SELECT job.id, job.priority, job.ready_at FROM holdfast_jobs AS job
    WHERE job.topic = :topic AND job.operation = wanted.operation AND job.status = 'ready'
      AND job.limit_key = room.limit_key
    ORDER BY -job.priority::integer, job.ready_at, job.id
    LIMIT room.free
) AS ready
