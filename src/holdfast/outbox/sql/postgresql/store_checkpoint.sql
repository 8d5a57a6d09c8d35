-- Store a checkpoint with the effects, and let the server end the transaction of a process that freezes now [OUTBOX-2].
-- Rows: 1.
SELECT holdfast_store_checkpoint(:processor, :version, :partition, :token, :expected_transaction::xid8,
    :expected_position, :transaction::xid8, :position, :highest),
    set_config('idle_in_transaction_session_timeout',
        coalesce(:idle_ms::text, current_setting('idle_in_transaction_session_timeout')), true)
