-- Store the first checkpoint of a processor that was never registered. Rows: 1, none when it has one.
INSERT INTO holdfast_processor_checkpoints
    (processor_id, version, partition_number, last_processed_transaction_id, last_processed_position, highest_position)
SELECT :processor, :version, :partition, :transaction, :position, :highest
WHERE NOT EXISTS (
    SELECT 1 FROM holdfast_processor_checkpoints
    WHERE processor_id = :processor AND version = :version AND partition_number = :partition)
