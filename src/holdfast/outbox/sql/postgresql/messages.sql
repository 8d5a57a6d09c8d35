-- part: columns
-- What a reader is told of a message, in the order of its fields.
message.transaction_id, message.position, message.message_id, message.message_type, message.data::text,
    message.headers::text, message.message_key, message.correlation_id, message.causation_id, message.appended_at

-- name: append
-- Append messages in the caller's transaction, in the order given [OUTBOX-1], and wake processors when it commits.
-- Rows: the ids that were not there yet.
WITH added AS (
INSERT INTO holdfast_outbox
    (message_id, message_type, data, headers, message_key, key_hash, correlation_id, causation_id)
SELECT m.message_id, m.message_type, m.data::jsonb, m.headers::jsonb, m.message_key, m.key_hash, m.correlation_id,
    m.causation_id
FROM unnest(:message_id::text[], :message_type::text[], :data::text[], :headers::text[], :message_key::text[],
        :key_hash::integer[], :correlation_id::text[], :causation_id::text[])
    WITH ORDINALITY AS m (message_id, message_type, data, headers, message_key, key_hash, correlation_id, causation_id, place)
ORDER BY m.place
ON CONFLICT (message_id) DO NOTHING
RETURNING message_id
)
SELECT message_id, CASE WHEN :wakes::boolean AND row_number() OVER () = 1 THEN pg_notify('holdfast_outbox', '') END FROM added

-- name: append_one
-- Append one message in the caller's transaction [OUTBOX-1], and wake processors when it commits.
-- Rows: its id, none when it was there already.
WITH added AS (
INSERT INTO holdfast_outbox
    (message_id, message_type, data, headers, message_key, key_hash, correlation_id, causation_id)
VALUES (:message_id, :message_type, :data::jsonb, :headers::jsonb, :message_key, :key_hash, :correlation_id,
    :causation_id)
ON CONFLICT (message_id) DO NOTHING
RETURNING message_id
)
SELECT message_id, CASE WHEN :wakes::boolean THEN pg_notify('holdfast_outbox', '') END FROM added

-- name: read
-- Read the next messages in the order (transaction, position), below every transaction that is still open: what is
-- below it can never change any more [OUTBOX-3]. Rows: up to :batch_size.
SELECT {{columns}}
FROM holdfast_outbox AS message
WHERE (message.transaction_id, message.position) > (:after_transaction::xid8, :after_position)
  AND message.transaction_id < pg_snapshot_xmin(pg_current_snapshot())
ORDER BY message.transaction_id, message.position
LIMIT :batch_size

-- name: read_by_position
-- Read the wanted ones of the next messages in the order of their positions, below a position no writer can still take
-- [OUTBOX-4]. Rows: as in read_some.
WITH looked_at AS MATERIALIZED (
    SELECT position, message_type, key_hash
    FROM holdfast_outbox
    WHERE position > :after_position AND position < :bound
    ORDER BY position
    LIMIT :look_at
),
wanted AS (
    SELECT position
    FROM looked_at
    WHERE (:types::text[] IS NULL OR message_type = ANY (:types::text[])) AND key_hash % :partitions = :partition
    ORDER BY position
    LIMIT :batch_size
),
reached AS (
    SELECT max(position) AS position, count(*) AS looked_at FROM looked_at HAVING count(*) > 0
)
SELECT 0, reached.position, reached.position, reached.looked_at, {{columns}}
FROM reached
LEFT JOIN wanted ON true
LEFT JOIN holdfast_outbox AS message ON message.position = wanted.position
ORDER BY wanted.position

-- name: read_some
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
SELECT reached.transaction_id, reached.position, reached.highest, reached.looked_at, {{columns}}
FROM reached
LEFT JOIN wanted ON true
LEFT JOIN holdfast_outbox AS message ON message.position = wanted.position
ORDER BY wanted.transaction_id, wanted.position

-- name: first
-- The first message that is kept. Rows: 1, or none when there is none.
SELECT transaction_id, position FROM holdfast_outbox ORDER BY transaction_id, position LIMIT 1

-- name: first_by_position
-- The lowest position that is kept. Rows: 1, or none when there is none.
SELECT 0, position FROM holdfast_outbox ORDER BY position LIMIT 1

-- name: last
-- The last message that was committed, whether or not it can be read yet. Rows: 1, or none when there is none.
SELECT transaction_id, position
FROM holdfast_outbox
ORDER BY transaction_id DESC, position DESC
LIMIT 1

-- name: last_by_position
-- The highest position that was committed. Rows: 1, or none when there is none.
SELECT 0, position FROM holdfast_outbox ORDER BY position DESC LIMIT 1

-- name: end
-- The last message that can be read now. Rows: 1, or none when there is none.
SELECT transaction_id, position
FROM holdfast_outbox
WHERE transaction_id < pg_snapshot_xmin(pg_current_snapshot())
ORDER BY transaction_id DESC, position DESC
LIMIT 1

-- name: prune
-- Delete old messages that every processor has passed, in its own order [OUTBOX-7]. Rows: up to :most.
DELETE FROM holdfast_outbox WHERE position IN (
    SELECT position FROM holdfast_outbox
    WHERE (transaction_id, position) <= (:transaction::xid8, :position) AND position <= :below AND appended_at < :before
    ORDER BY transaction_id, position
    LIMIT :most)

-- name: held_back
-- Whether committed messages wait for an older transaction, and whose that is [OUTBOX-5]. Rows: 1.
WITH present AS (SELECT pg_snapshot_xmin(pg_current_snapshot()) AS oldest)
SELECT EXISTS (SELECT FROM holdfast_outbox WHERE transaction_id >= present.oldest),
    blocker.pid, extract(epoch FROM clock_timestamp() - blocker.xact_start)::float8, blocker.datname,
    blocker.application_name, prepared.gid, extract(epoch FROM clock_timestamp() - prepared.prepared)::float8
FROM present
LEFT JOIN pg_stat_activity AS blocker ON blocker.backend_xid = present.oldest::xid
LEFT JOIN pg_prepared_xacts AS prepared ON prepared.transaction = present.oldest::xid
LIMIT 1

-- name: standing
-- Where every processor stands, whether something was put back for it, and the last message that can be read now: all
-- that those look at that rest. Rows: one for each partition.
SELECT
    place.processor_id,
    place.version,
    place.partition_number,
    place.role,
    place.status,
    place.fencing_token,
    place.last_processed_transaction_id,
    place.last_processed_position,
    EXISTS (
        SELECT FROM holdfast_processor_redeliveries AS again
        WHERE again.processor_id = place.processor_id
          AND again.version = place.version
          AND again.partition_number = place.partition_number
    ) AS has_redelivery,
    readable.transaction_id AS last_transaction_id,
    readable.position AS last_position
FROM holdfast_processor_checkpoints AS place
LEFT JOIN (
    SELECT transaction_id, position
    FROM holdfast_outbox
    WHERE transaction_id < pg_snapshot_xmin(pg_current_snapshot())
    ORDER BY transaction_id DESC, position DESC
    LIMIT 1
) AS readable ON true
