-- Read the wanted ones of the next messages, and how far was looked [OUTBOX-3]. Rows: none when there are no messages at
-- all; else the end of what was looked at, with each wanted message, or once without one.
WITH looked_at AS (
    SELECT position, message_type, key_hash FROM holdfast_outbox
    WHERE position > :after_position
    ORDER BY position
    LIMIT :look_at
),
wanted AS (
    SELECT position FROM looked_at
    WHERE (:types IS NULL OR JSON_CONTAINS(:types, JSON_QUOTE(message_type))) AND key_hash % :partitions = :partition
    ORDER BY position
    LIMIT :batch_size
),
reached AS (
    SELECT MAX(position) AS position, COUNT(*) AS looked_at FROM looked_at HAVING COUNT(*) > 0
)
SELECT 0, reached.position, reached.position, reached.looked_at, {{columns.sql}}
FROM reached
LEFT JOIN wanted ON true
LEFT JOIN holdfast_outbox AS message ON message.position = wanted.position
ORDER BY wanted.position
