-- Write down what rate buckets hold now. Rows: none.
INSERT INTO holdfast_rate_buckets (topic, limit_key, tokens, refilled_at)
SELECT :topic, drawn.limit_key, drawn.tokens, :now
FROM JSON_TABLE(:batch, '$[*]' COLUMNS (limit_key VARCHAR(200) PATH '$.limit_key', tokens DOUBLE PATH '$.tokens')) AS drawn
ON DUPLICATE KEY UPDATE tokens = VALUES(tokens), refilled_at = VALUES(refilled_at)
