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
