-- Append messages in the caller's transaction, in the order given [OUTBOX-1]. Rows: the ids that were not there yet.
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
