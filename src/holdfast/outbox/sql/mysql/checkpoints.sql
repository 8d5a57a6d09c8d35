-- name: create_checkpoint
-- Store the first checkpoint of a processor that was never registered. Rows: 1, none when it has one.
INSERT INTO holdfast_processor_checkpoints
    (processor_id, version, partition_number, last_processed_transaction_id, last_processed_position, highest_position)
SELECT :processor, :version, :partition, :transaction, :position, :highest FROM DUAL
WHERE NOT EXISTS (
    SELECT 1 FROM holdfast_processor_checkpoints
    WHERE processor_id = :processor AND version = :version AND partition_number = :partition)

-- name: stored_checkpoint
-- What is stored for a processor now, not when the transaction began, locked until it ends. Rows: 1, or none.
SELECT last_processed_transaction_id, last_processed_position, fencing_token, status, role, NULL
FROM holdfast_processor_checkpoints
WHERE processor_id = :processor AND version = :version AND partition_number = :partition
FOR UPDATE

-- name: store_checkpoint
-- Store a checkpoint with the effects if the stored one is the expected one and the token, if given, still holds
-- [OUTBOX-2]. Rows: 1, none when either is not so.
UPDATE holdfast_processor_checkpoints
SET last_processed_transaction_id = :transaction, last_processed_position = :position,
    highest_position = GREATEST(COALESCE(highest_position, :highest), :highest), updated_at = UTC_TIMESTAMP(6)
WHERE processor_id = :processor AND version = :version AND partition_number = :partition
  AND last_processed_transaction_id <=> :expected_transaction AND last_processed_position <=> :expected_position
  AND (:token IS NULL OR (fencing_token = :token AND status = 'running' AND role <> 'retired'))

-- name: behind
-- How many messages lie behind a position or have none yet, counted up to a limit. Rows: 1.
SELECT COUNT(*) FROM (
    SELECT 1 FROM holdfast_outbox WHERE position > :after_position OR position IS NULL LIMIT :most) AS found
