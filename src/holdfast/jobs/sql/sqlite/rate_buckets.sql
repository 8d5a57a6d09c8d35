-- What each rate bucket of a topic holds now, full ones left out. Rows: one per bucket.
SELECT limit_key, tokens, (julianday(:now) - julianday(refilled_at)) * 86400.0 FROM holdfast_rate_buckets
WHERE topic = :topic
