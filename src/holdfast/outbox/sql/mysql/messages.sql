-- part: columns
-- What a reader is told of a message, in the order of its fields.
0, message.position, message.message_id, message.message_type, message.data, message.headers, message.message_key,
    message.correlation_id, message.causation_id, message.appended_at

-- name: append
-- Append messages in the caller's transaction; an id that is there already is left alone [OUTBOX-1].
-- Rows: one for each set of values.
INSERT INTO holdfast_outbox
    (transaction_group, append_id, message_id, message_type, data, headers, message_key, key_hash, correlation_id, causation_id)
VALUES (:transaction_group, :append_id, :message_id, :message_type, :data, :headers, :message_key, :key_hash, :correlation_id, :causation_id)
ON DUPLICATE KEY UPDATE message_id = message_id

-- name: appended
-- Which messages an append has added. Rows: their ids.
SELECT message_id FROM holdfast_outbox WHERE transaction_group = :transaction_group AND append_id = :append_id

-- name: lock_sequence
-- Let one sequencer at a time give positions, and none that was succeeded [OUTBOX-6]. Rows: 1, none for a stale one.
SELECT last_position FROM holdfast_outbox_sequence WHERE id = 1 AND fencing_token <= :token FOR UPDATE

-- name: give_positions
-- Give positions to messages, and remember the last one [OUTBOX-6]. The messages are looked up one by one: to scan for
-- them would wait for those of open transactions. Rows: one for each message; then 1.
UPDATE JSON_TABLE(:batch, '$[*]' COLUMNS (id bigint PATH '$[0]', position bigint PATH '$[1]')) AS given
STRAIGHT_JOIN holdfast_outbox AS message FORCE INDEX (PRIMARY) ON message.id = given.id
SET message.position = given.position;
UPDATE holdfast_outbox_sequence SET last_position = :last_position, fencing_token = :token
WHERE id = 1 AND fencing_token <= :token

-- name: unsequenced
-- Committed messages that have no position yet, by consistent read: it waits for nobody. Rows: up to :most.
SELECT id, transaction_group FROM holdfast_outbox WHERE position IS NULL ORDER BY id LIMIT :most

-- name: unsequenced_up_to
-- Committed messages up to an id that have no position yet. Rows: any.
SELECT id, transaction_group FROM holdfast_outbox WHERE position IS NULL AND id <= :last_id ORDER BY id

-- name: unsequenced_of_groups
-- The same of some transactions, all of them. Rows: any.
SELECT message.id, message.transaction_group
FROM JSON_TABLE(:batch, '$[*]' COLUMNS (
    transaction_group char(16) CHARACTER SET utf8mb4 COLLATE {{key_collation}} PATH '$')) AS asked
JOIN holdfast_outbox AS message ON message.transaction_group = asked.transaction_group
WHERE message.position IS NULL

-- name: read
-- Read the next messages in the order of their positions, which were given to committed rows only [OUTBOX-3].
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
    WHERE (:types IS NULL OR JSON_CONTAINS(:types, JSON_QUOTE(message_type))) AND key_hash % :partitions = :partition
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
-- The first message that is kept: one without a position gets the next one. Rows: 1, NULL when there is none.
SELECT 0, COALESCE(
    (SELECT MIN(position) FROM holdfast_outbox),
    (SELECT sequence.last_position + 1 FROM holdfast_outbox_sequence AS sequence
     WHERE sequence.id = 1 AND EXISTS (SELECT 1 FROM holdfast_outbox)))

-- name: last
-- The position of the last message that is committed: those without one get the next ones. Rows: 1, NULL when there is none.
SELECT 0, IF(waiting.messages > 0, sequence.last_position + waiting.messages,
    (SELECT MAX(position) FROM holdfast_outbox))
FROM holdfast_outbox_sequence AS sequence,
    (SELECT COUNT(*) AS messages FROM holdfast_outbox WHERE position IS NULL) AS waiting
WHERE sequence.id = 1

-- name: end
-- The last message that can be read now. Rows: 1, or none when there is none.
SELECT 0, position FROM holdfast_outbox WHERE position IS NOT NULL ORDER BY position DESC LIMIT 1

-- name: prune
-- Delete old messages that every processor has passed [OUTBOX-7]. Rows: up to :most.
DELETE FROM holdfast_outbox
WHERE position <= :position AND position <= :below AND appended_at < :before
ORDER BY position
LIMIT :most
