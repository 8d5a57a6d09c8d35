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
