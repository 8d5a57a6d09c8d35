-- Write down what rate buckets hold now. Rows: none.
INSERT INTO holdfast_rate_buckets (topic, limit_key, tokens, refilled_at)
SELECT :topic, drawn.limit_key, drawn.tokens, :now
FROM unnest(:keys::text[], :tokens::double precision[]) AS drawn (limit_key, tokens)
ON CONFLICT (topic, limit_key) DO UPDATE SET tokens = excluded.tokens, refilled_at = excluded.refilled_at
RETURNING limit_key
