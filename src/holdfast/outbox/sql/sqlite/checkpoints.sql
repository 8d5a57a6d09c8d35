-- name: create_checkpoint
-- Store the first checkpoint of a processor that was never registered. Rows: 1, none when it has one.
INSERT INTO holdfast_processor_checkpoints
    (processor_id, version, partition_number, last_processed_transaction_id, last_processed_position, highest_position)
SELECT :processor, :version, :partition, :transaction, :position, :highest
WHERE NOT EXISTS (
    SELECT 1 FROM holdfast_processor_checkpoints
    WHERE processor_id = :processor AND version = :version AND partition_number = :partition)

-- name: stored_checkpoint
-- What is stored for a processor now; the transaction has the write lock. Rows: 1, or none.
SELECT last_processed_transaction_id, last_processed_position, fencing_token, status, role, NULL
FROM holdfast_processor_checkpoints
WHERE processor_id = :processor AND version = :version AND partition_number = :partition

-- name: store_checkpoint
-- Store a checkpoint with the effects if the stored one is the expected one and the token, if given, still holds
-- [OUTBOX-2]. Rows: 1, none when either is not so.
UPDATE holdfast_processor_checkpoints
SET last_processed_transaction_id = :transaction, last_processed_position = :position,
    highest_position = max(coalesce(highest_position, :highest), :highest), updated_at = strftime('%Y-%m-%d %H:%M:%f000', 'now')
WHERE processor_id = :processor AND version = :version AND partition_number = :partition
  AND last_processed_transaction_id IS :expected_transaction AND last_processed_position IS :expected_position
  AND (:token IS NULL OR (fencing_token = :token AND status = 'running' AND role <> 'retired'))

-- name: behind
-- How many messages lie behind a position, counted up to a limit. Rows: 1.
SELECT COUNT(*) FROM (SELECT 1 FROM holdfast_outbox WHERE position > :after_position LIMIT :most) AS found
