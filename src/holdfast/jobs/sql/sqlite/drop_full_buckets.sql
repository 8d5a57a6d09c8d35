-- Forget the buckets of keys that are full again, as all are once the rate's time has passed. Rows: none.
DELETE FROM holdfast_rate_buckets
WHERE topic = :topic AND limit_key <> '' AND (julianday(:now) - julianday(refilled_at)) * 86400.0 >= :seconds
