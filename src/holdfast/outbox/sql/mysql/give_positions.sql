-- Give positions to messages, and remember the last one [OUTBOX-6]. The messages are looked up one by one: to scan for
-- them would wait for those of open transactions. Rows: one for each message; then 1.
UPDATE JSON_TABLE(:batch, '$[*]' COLUMNS (id bigint PATH '$[0]', position bigint PATH '$[1]')) AS given
STRAIGHT_JOIN holdfast_outbox AS message FORCE INDEX (PRIMARY) ON message.id = given.id
SET message.position = given.position;
UPDATE holdfast_outbox_sequence SET last_position = :last_position, fencing_token = :token
WHERE id = 1 AND fencing_token <= :token
