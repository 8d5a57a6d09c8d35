-- Write down what a rate bucket holds now. Rows: none.
INSERT INTO holdfast_rate_buckets (topic, limit_key, tokens, refilled_at)
VALUES (:topic, :limit_key, :tokens, :now)
ON CONFLICT (topic, limit_key) DO UPDATE SET tokens = excluded.tokens, refilled_at = excluded.refilled_at
