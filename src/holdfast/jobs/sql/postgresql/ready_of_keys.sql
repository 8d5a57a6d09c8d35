-- The next ready jobs of each key, as many as it has room for. Rows: ids with their keys.
SELECT ready.id, room.limit_key
FROM unnest(:keys::text[], :rooms::integer[]) AS room (limit_key, free)
CROSS JOIN LATERAL (
    SELECT job.id FROM holdfast_jobs AS job
    WHERE job.topic = :topic AND job.status = 'ready' AND job.limit_key = room.limit_key
    ORDER BY job.priority DESC, job.id
    LIMIT room.free
    FOR UPDATE SKIP LOCKED
) AS ready
LIMIT :capacity
