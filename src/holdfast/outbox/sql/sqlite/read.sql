-- Read the next messages in the order of their positions [OUTBOX-3].
-- Rows: up to :batch_size.
SELECT {{columns.sql}}
FROM holdfast_outbox AS message
WHERE message.position > :after_position
ORDER BY message.position
LIMIT :batch_size
