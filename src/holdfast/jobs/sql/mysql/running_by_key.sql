-- How many jobs of a topic run, by key. Rows: one per key, NULL for jobs without.
SELECT limit_key, count(*) FROM holdfast_jobs WHERE topic = :topic AND status = 'running' GROUP BY limit_key
