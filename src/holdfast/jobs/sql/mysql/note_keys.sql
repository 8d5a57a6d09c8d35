-- From now on jobs of this topic have keys: it is claimed under its lock. Rows: one when that is news.
-- The look comes first and locks nothing: else every enqueue would hold up the workers who claim from the topic.
SELECT 1 AS is_news FROM DUAL WHERE NOT EXISTS (SELECT 1 FROM holdfast_topics WHERE topic = :topic AND is_limited);
INSERT INTO holdfast_topics (topic, is_limited, updated_at) VALUES (:topic, 1, :now)
ON DUPLICATE KEY UPDATE is_limited = 1
