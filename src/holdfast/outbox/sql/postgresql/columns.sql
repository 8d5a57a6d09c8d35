message.transaction_id, message.position, message.message_id, message.message_type, message.data::text,
    message.headers::text, message.message_key, message.correlation_id, message.causation_id, message.appended_at
