-- The keys of the next :most_keys ready jobs of an operation, after :after_key; the caller goes on from the last one.
-- A recursive query would not do: it reads every job of the keys before. Rows: keys in order, with repeats.
SELECT limit_key FROM holdfast_jobs FORCE INDEX (holdfast_jobs_by_key)
WHERE status = 'ready' AND topic = :topic AND operation = :operation AND limit_key > :after_key
ORDER BY limit_key
LIMIT :most_keys
