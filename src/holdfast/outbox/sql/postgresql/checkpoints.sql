-- name: stored_checkpoint
-- What is stored for a processor now, locked until the transaction ends; and the transaction's id. Rows: 1, or none.
SELECT last_processed_transaction_id, last_processed_position, fencing_token, status, role, pg_current_xact_id()::text
FROM holdfast_processor_checkpoints
WHERE processor_id = :processor AND version = :version AND partition_number = :partition
FOR UPDATE

-- name: store_checkpoint
-- Store a checkpoint with the effects, and let the server end the transaction of a process that freezes now [OUTBOX-2].
-- Rows: 1.
SELECT holdfast_store_checkpoint(:processor, :version, :partition, :token, :expected_transaction::xid8,
    :expected_position, :transaction::xid8, :position, :highest),
    set_config('idle_in_transaction_session_timeout',
        coalesce(:idle_ms::text, current_setting('idle_in_transaction_session_timeout')), true)

-- name: behind
-- How many messages lie behind a checkpoint in the order of transactions, counted up to a limit. Rows: 1.
SELECT count(*) FROM (
    SELECT FROM holdfast_outbox
    WHERE (transaction_id, position) > (:after_transaction::xid8, :after_position)
    LIMIT :most) AS found

-- name: behind_by_position
-- How many messages lie behind a position, counted up to a limit. Rows: 1.
SELECT count(*) FROM (SELECT FROM holdfast_outbox WHERE position > :after_position LIMIT :most) AS found
