-- name: outcome
-- What history says about an attempt, to learn whether a write whose answer was lost landed. Rows: one or none.
SELECT status FROM holdfast_history
WHERE correlation_id = :correlation_id AND item_id = :item_id AND attempt = :attempt
