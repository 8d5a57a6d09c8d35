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
SELECT 0, reached.position, reached.position, reached.looked_at, {{columns.sql}}
FROM reached
LEFT JOIN wanted ON true
LEFT JOIN holdfast_outbox AS message ON message.position = wanted.position
ORDER BY wanted.position
