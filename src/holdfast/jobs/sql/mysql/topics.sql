-- Every topic that was declared, limited or paused.
SELECT topic, is_paused, is_limited, max_running, max_running_per_key, rate_count, rate_seconds, rate_count_per_key,
    rate_seconds_per_key
FROM holdfast_topics
ORDER BY topic
