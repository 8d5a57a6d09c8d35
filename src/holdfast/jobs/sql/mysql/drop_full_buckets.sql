-- Forget the buckets of keys that are full again, as all are once the rate's time has passed. Rows: none.
DELETE FROM holdfast_rate_buckets
WHERE topic = :topic AND limit_key <> '' AND TIMESTAMPDIFF(MICROSECOND, refilled_at, :now) / 1e6 >= :seconds
