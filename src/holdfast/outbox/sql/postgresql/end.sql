-- The last message that can be read now. Rows: 1, or none when there is none.
SELECT transaction_id, position
FROM holdfast_outbox
WHERE transaction_id < pg_snapshot_xmin(pg_current_snapshot())
ORDER BY transaction_id DESC, position DESC
LIMIT 1
