-- Pause or resume a topic. Rows: none.
INSERT INTO holdfast_topics (topic, is_paused, updated_at) VALUES (:topic, :is_paused, :now)
ON CONFLICT (topic) DO UPDATE SET is_paused = excluded.is_paused, updated_at = excluded.updated_at
