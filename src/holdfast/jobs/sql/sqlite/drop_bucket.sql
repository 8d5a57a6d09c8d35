-- Forget a bucket that is full again. Rows: none.
DELETE FROM holdfast_rate_buckets WHERE topic = :topic AND limit_key = :limit_key
