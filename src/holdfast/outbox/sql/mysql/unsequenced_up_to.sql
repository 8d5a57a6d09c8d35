-- Committed messages up to an id that have no position yet. Rows: any.
SELECT id, transaction_group FROM holdfast_outbox WHERE position IS NULL AND id <= :last_id ORDER BY id
