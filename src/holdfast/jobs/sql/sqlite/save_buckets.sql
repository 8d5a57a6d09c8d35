-- Write down what rate buckets hold now. Rows: none.
INSERT INTO holdfast_rate_buckets (topic, limit_key, tokens, refilled_at)
SELECT :topic, json_extract(value, '$.limit_key'), json_extract(value, '$.tokens'), :now
FROM json_each(:batch)
WHERE true
ON CONFLICT (topic, limit_key) DO UPDATE SET tokens = excluded.tokens, refilled_at = excluded.refilled_at
