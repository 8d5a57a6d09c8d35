-- Read the wanted ones of the next messages, and how far was looked [OUTBOX-3]. Rows: none when there are no messages at
-- all; else the end of what was looked at, with each wanted message, or once without one.
WITH looked_at AS MATERIALIZED (
    SELECT transaction_id, position, message_type, key_hash
    FROM holdfast_outbox
    WHERE (transaction_id, position) > (:after_transaction::xid8, :after_position)
      AND transaction_id < pg_snapshot_xmin(pg_current_snapshot())
    ORDER BY transaction_id, position
    LIMIT :look_at
),
wanted AS (
    SELECT transaction_id, position
    FROM looked_at
    WHERE (:types::text[] IS NULL OR message_type = ANY (:types::text[])) AND key_hash % :partitions = :partition
    ORDER BY transaction_id, position
    LIMIT :batch_size
),
reached AS (
    SELECT transaction_id, position, (SELECT max(position) FROM looked_at) AS highest,
        (SELECT count(*) FROM looked_at) AS looked_at
    FROM looked_at
    ORDER BY transaction_id DESC, position DESC
    LIMIT 1
)
SELECT reached.transaction_id, reached.position, reached.highest, reached.looked_at, {{columns.sql}}
FROM reached
LEFT JOIN wanted ON true
LEFT JOIN holdfast_outbox AS message ON message.position = wanted.position
ORDER BY wanted.transaction_id, wanted.position
