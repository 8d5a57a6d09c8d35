-- Committed messages that have no position yet, by consistent read: it waits for nobody. Rows: up to :most.
SELECT id, transaction_group FROM holdfast_outbox WHERE position IS NULL ORDER BY id LIMIT :most
