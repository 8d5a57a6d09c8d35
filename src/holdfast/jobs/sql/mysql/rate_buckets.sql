-- What each rate bucket of a topic holds now, full ones left out. Rows: one per bucket.
SELECT limit_key, tokens, TIMESTAMPDIFF(MICROSECOND, refilled_at, :now) / 1e6 FROM holdfast_rate_buckets
WHERE topic = :topic
