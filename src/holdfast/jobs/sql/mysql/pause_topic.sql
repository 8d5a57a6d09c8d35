-- Pause or resume a topic. Rows: none.
INSERT INTO holdfast_topics (topic, is_paused, updated_at) VALUES (:topic, :is_paused, :now)
ON DUPLICATE KEY UPDATE is_paused = VALUES(is_paused), updated_at = VALUES(updated_at)
