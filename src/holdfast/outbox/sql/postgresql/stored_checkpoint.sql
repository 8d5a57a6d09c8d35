-- What is stored for a processor now, locked until the transaction ends; and the transaction's id. Rows: 1, or none.
SELECT last_processed_transaction_id, last_processed_position, fencing_token, status, role, pg_current_xact_id()::text
FROM holdfast_processor_checkpoints
WHERE processor_id = :processor AND version = :version AND partition_number = :partition
FOR UPDATE
