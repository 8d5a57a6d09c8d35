-- Write down what a rate bucket holds now. Rows: none.
INSERT INTO holdfast_rate_buckets (topic, limit_key, tokens, refilled_at)
VALUES (:topic, :limit_key, :tokens, :now)
ON DUPLICATE KEY UPDATE tokens = VALUES(tokens), refilled_at = VALUES(refilled_at)
