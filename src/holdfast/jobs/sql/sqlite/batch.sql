-- The batch as a table: one row per report, NULL where a report says nothing.
(SELECT json_extract(value, '$.id') AS id, json_extract(value, '$.attempt') AS attempt,
    json_extract(value, '$.duration_ms') AS duration_ms, json_extract(value, '$.output') AS output,
    json_extract(value, '$.error') AS error, json_extract(value, '$.retry_seconds') AS retry_seconds,
    json_extract(value, '$.is_final') AS is_final, json_extract(value, '$.next_status') AS next_status,
    json_extract(value, '$.delay_seconds') AS delay_seconds, json_extract(value, '$.reason') AS reason,
    json_extract(value, '$.progress') AS progress, json_extract(value, '$.suspicions') AS suspicions
FROM json_each(:batch))
