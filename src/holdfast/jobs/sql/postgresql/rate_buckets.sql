-- What each rate bucket of a topic holds now, full ones left out. Rows: one per bucket.
SELECT limit_key, tokens, extract(epoch FROM :now - refilled_at)::double precision FROM holdfast_rate_buckets
WHERE topic = :topic
