-- What is stored for a processor now, not when the transaction began, locked until it ends. Rows: 1, or none.
SELECT last_processed_transaction_id, last_processed_position, fencing_token, status, role, NULL
FROM holdfast_processor_checkpoints
WHERE processor_id = :processor AND version = :version AND partition_number = :partition
FOR UPDATE
