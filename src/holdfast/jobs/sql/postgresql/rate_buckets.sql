-- What rate buckets of a topic hold now, full ones left out. Rows: one per bucket.
SELECT limit_key, tokens, extract(epoch FROM :now - refilled_at)::double precision FROM holdfast_rate_buckets
WHERE topic = :topic AND limit_key = ANY (:keys::text[])
