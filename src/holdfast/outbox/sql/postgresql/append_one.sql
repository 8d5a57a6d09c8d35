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
