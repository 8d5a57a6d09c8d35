-- name: places_by_key
-- How many places of a topic are taken, by key: by jobs that run, and by suspects that the next place is kept for.
-- Rows: one per key and kind, NULL for jobs without a key.
SELECT limit_key, status, count(*) FROM holdfast_jobs WHERE topic = :topic AND status = 'running' GROUP BY limit_key, status
UNION ALL
SELECT limit_key, status, count(*) FROM holdfast_jobs
WHERE topic = :topic AND status = 'suspect' AND {{has_reserved}} GROUP BY limit_key, status

-- name: reserve_place
-- Keep the next place in its topic, and of its key, for a suspect that somebody is ready to test. Rows: none.
UPDATE holdfast_jobs SET reserved_at = :now WHERE id = :id AND status = 'suspect'

-- name: time
-- The database's time. Rows: one.
SELECT :now
