-- part: columns
-- What a reader is told of a message, in the order of its fields.
0, message.position, message.message_id, message.message_type, message.data, message.headers, message.message_key,
    message.correlation_id, message.causation_id, message.appended_at

-- name: append
-- Append messages in the caller's transaction, in the order given [OUTBOX-1]. Rows: the ids that were not there yet.
INSERT INTO holdfast_outbox
    (message_id, message_type, data, headers, message_key, key_hash, correlation_id, causation_id)
SELECT value ->> 'message_id', value ->> 'message_type', value ->> 'data', value ->> 'headers', value ->> 'message_key',
    value ->> 'key_hash', value ->> 'correlation_id', value ->> 'causation_id'
FROM json_each(:batch)
WHERE true
ORDER BY key
ON CONFLICT (message_id) DO NOTHING
RETURNING message_id

-- name: read
-- Read the next messages in the order of their positions [OUTBOX-3].
-- Rows: up to :batch_size.
SELECT {{columns}}
FROM holdfast_outbox AS message
WHERE message.position > :after_position
ORDER BY message.position
LIMIT :batch_size

-- name: read_some
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
    WHERE (:types IS NULL OR message_type IN (SELECT value FROM json_each(:types))) AND key_hash % :partitions = :partition
    ORDER BY position
    LIMIT :batch_size
),
reached AS (
    SELECT MAX(position) AS position, COUNT(*) AS looked_at FROM looked_at HAVING COUNT(*) > 0
)
SELECT 0, reached.position, reached.position, reached.looked_at, {{columns}}
FROM reached
LEFT JOIN wanted ON true
LEFT JOIN holdfast_outbox AS message ON message.position = wanted.position
ORDER BY wanted.position

-- name: first
-- The first message that is kept. Rows: 1, or none when there is none.
SELECT 0, position FROM holdfast_outbox ORDER BY position LIMIT 1

-- name: last
-- The last message that can be read now. Rows: 1, or none when there is none.
SELECT 0, position FROM holdfast_outbox WHERE position IS NOT NULL ORDER BY position DESC LIMIT 1

-- name: end
-- The last message that can be read now. Rows: 1, or none when there is none.
SELECT 0, position FROM holdfast_outbox WHERE position IS NOT NULL ORDER BY position DESC LIMIT 1

-- name: prune
-- Delete old messages that every processor has passed [OUTBOX-7]. Rows: up to :most.
DELETE FROM holdfast_outbox WHERE position IN (
    SELECT position FROM holdfast_outbox
    WHERE position <= :position AND position <= :below AND appended_at < :before
    ORDER BY position
    LIMIT :most)
