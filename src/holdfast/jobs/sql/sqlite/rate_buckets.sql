-- What rate buckets of a topic hold now, full ones left out. Rows: one per bucket.
SELECT limit_key, tokens, (julianday(:now) - julianday(refilled_at)) * 86400.0 FROM holdfast_rate_buckets
WHERE topic = :topic AND limit_key IN (SELECT json_extract(value, '$.limit_key') FROM json_each(:batch))
