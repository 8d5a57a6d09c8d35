-- Declare a topic's limits. Rows: none.
INSERT INTO holdfast_topics (topic, is_limited, max_running, max_running_per_key, rate_count, rate_seconds,
    rate_count_per_key, rate_seconds_per_key, updated_at)
VALUES (:topic, :is_limited, :max_running, :max_running_per_key, :rate_count, :rate_seconds,
    :rate_count_per_key, :rate_seconds_per_key, :now)
ON CONFLICT (topic) DO UPDATE SET is_limited = is_limited OR excluded.is_limited, max_running = excluded.max_running,
    max_running_per_key = excluded.max_running_per_key, rate_count = excluded.rate_count,
    rate_seconds = excluded.rate_seconds, rate_count_per_key = excluded.rate_count_per_key,
    rate_seconds_per_key = excluded.rate_seconds_per_key, updated_at = excluded.updated_at
