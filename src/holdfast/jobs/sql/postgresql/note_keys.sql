-- From now on jobs of this topic have keys: it is claimed under its lock. Rows: none.
INSERT INTO holdfast_topics (topic, is_limited, updated_at) VALUES (:topic, true, :now)
ON CONFLICT (topic) DO UPDATE SET is_limited = true WHERE NOT holdfast_topics.is_limited
