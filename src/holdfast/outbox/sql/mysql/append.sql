-- Append messages in the caller's transaction; an id that is there already is left alone [OUTBOX-1].
-- Rows: one for each set of values.
INSERT INTO holdfast_outbox
    (transaction_group, append_id, message_id, message_type, data, headers, message_key, key_hash, correlation_id, causation_id)
VALUES (:transaction_group, :append_id, :message_id, :message_type, :data, :headers, :message_key, :key_hash, :correlation_id, :causation_id)
ON DUPLICATE KEY UPDATE message_id = message_id
