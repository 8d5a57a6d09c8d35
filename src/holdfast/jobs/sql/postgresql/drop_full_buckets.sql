-- Forget the buckets of keys that are full again, as all are once the rate's time has passed. Rows: none.
DELETE FROM holdfast_rate_buckets
WHERE topic = :topic AND limit_key <> '' AND refilled_at <= :now - :seconds * interval '1 second'
