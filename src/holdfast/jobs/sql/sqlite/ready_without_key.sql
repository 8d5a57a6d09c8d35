-- The next ready jobs of a topic that have no key. Rows: ids with their priorities.
SELECT id, priority FROM holdfast_jobs
WHERE topic = :topic AND status = 'ready' AND limit_key IS NULL
ORDER BY priority DESC, id
LIMIT :capacity
