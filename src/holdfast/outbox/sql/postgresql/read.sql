-- Read the next messages in the order (transaction, position), below every transaction that is still open: what is
-- below it can never change any more [OUTBOX-3]. Rows: up to :batch_size.
SELECT {{columns.sql}}
FROM holdfast_outbox AS message
WHERE (message.transaction_id, message.position) > (:after_transaction::xid8, :after_position)
  AND message.transaction_id < pg_snapshot_xmin(pg_current_snapshot())
ORDER BY message.transaction_id, message.position
LIMIT :batch_size
