-- From now on jobs of this topic have keys: it is claimed under its lock. Rows: one when that is news.
SELECT 1 AS is_news WHERE NOT EXISTS (SELECT 1 FROM holdfast_topics WHERE topic = :topic AND is_limited);
INSERT INTO holdfast_topics (topic, is_limited, updated_at) VALUES (:topic, 1, :now)
ON CONFLICT (topic) DO UPDATE SET is_limited = 1
