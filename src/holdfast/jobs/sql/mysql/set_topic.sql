-- Declare a topic's limits. Rows: none.
INSERT INTO holdfast_topics (topic, is_limited, max_running, max_running_per_key, rate_count, rate_seconds,
    rate_count_per_key, rate_seconds_per_key, updated_at)
VALUES (:topic, :is_limited, :max_running, :max_running_per_key, :rate_count, :rate_seconds,
    :rate_count_per_key, :rate_seconds_per_key, :now)
ON DUPLICATE KEY UPDATE is_limited = GREATEST(is_limited, VALUES(is_limited)), max_running = VALUES(max_running),
    max_running_per_key = VALUES(max_running_per_key), rate_count = VALUES(rate_count),
    rate_seconds = VALUES(rate_seconds), rate_count_per_key = VALUES(rate_count_per_key),
    rate_seconds_per_key = VALUES(rate_seconds_per_key), updated_at = VALUES(updated_at)
