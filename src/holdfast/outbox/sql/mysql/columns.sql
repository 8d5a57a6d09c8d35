0, message.position, message.message_id, message.message_type, message.data, message.headers, message.message_key,
    message.correlation_id, message.causation_id, message.appended_at
