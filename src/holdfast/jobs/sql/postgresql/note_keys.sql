-- From now on jobs of this topic have keys: it is claimed under its lock. Looks first, because an upsert would hold that
-- lock until the caller commits. Rows: none.
INSERT INTO holdfast_topics (topic, is_limited, updated_at)
SELECT :topic, true, :now
WHERE NOT EXISTS (SELECT FROM holdfast_topics WHERE topic = :topic AND is_limited)
ON CONFLICT (topic) DO UPDATE SET is_limited = true
