-- What rate buckets of a topic hold now, full ones left out. Rows: one per bucket.
SELECT bucket.limit_key, bucket.tokens, TIMESTAMPDIFF(MICROSECOND, bucket.refilled_at, :now) / 1e6
FROM JSON_TABLE(:batch, '$[*]' COLUMNS (limit_key VARCHAR(200) PATH '$.limit_key')) AS asked
STRAIGHT_JOIN holdfast_rate_buckets AS bucket FORCE INDEX (PRIMARY)
    ON bucket.topic = :topic AND bucket.limit_key = asked.limit_key
