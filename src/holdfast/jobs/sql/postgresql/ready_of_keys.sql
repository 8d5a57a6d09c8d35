-- The next ready jobs of each key, as many as are asked for. Rows: ids with their keys and priorities, key by key.
-- They are locked when they are claimed, which is soon: nobody else claims from this topic now.
SELECT ready.id, room.limit_key, ready.priority
FROM unnest(:keys::text[], :rooms::integer[]) AS room (limit_key, free)
CROSS JOIN LATERAL (
    SELECT job.id, job.priority FROM holdfast_jobs AS job
    WHERE job.topic = :topic AND job.status = 'ready' AND job.limit_key = room.limit_key
    ORDER BY job.priority DESC, job.id
    LIMIT room.free
) AS ready
