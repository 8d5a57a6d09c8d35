-- Take the turn to claim from a limited topic: the transaction has the write lock. Rows: one or none.
SELECT max_running, max_running_per_key, rate_count, rate_seconds, rate_count_per_key, rate_seconds_per_key
FROM holdfast_topics
WHERE topic = :topic AND is_limited AND NOT is_paused
