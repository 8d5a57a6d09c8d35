-- Store a checkpoint with the effects if the stored one is the expected one and the token, if given, still holds
-- [OUTBOX-2]. Rows: 1, none when either is not so.
UPDATE holdfast_processor_checkpoints
SET last_processed_transaction_id = :transaction, last_processed_position = :position,
    highest_position = GREATEST(COALESCE(highest_position, :highest), :highest), updated_at = UTC_TIMESTAMP(6)
WHERE processor_id = :processor AND version = :version AND partition_number = :partition
  AND last_processed_transaction_id <=> :expected_transaction AND last_processed_position <=> :expected_position
  AND (:token IS NULL OR (fencing_token = :token AND status = 'running' AND role <> 'retired'))
