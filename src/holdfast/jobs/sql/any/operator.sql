-- name: topics
-- Every topic that was declared, limited or paused.
SELECT topic, is_paused, is_limited, max_running, max_running_per_key, rate_count, rate_seconds, rate_count_per_key,
    rate_seconds_per_key, limited_by
FROM holdfast_topics
ORDER BY topic

-- name: get
-- One job. Rows: one or none.
SELECT job.*, :now AS read_at FROM holdfast_jobs AS job WHERE id = :id
