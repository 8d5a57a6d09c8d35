-- The batch as a table: one row per report, NULL where a report says nothing, in the order of ids it was sent in.
JSON_TABLE(:batch, '$[*]' COLUMNS (
    id BIGINT PATH '$.id', attempt INT PATH '$.attempt', duration_ms BIGINT PATH '$.duration_ms',
    output LONGTEXT PATH '$.output', error LONGTEXT PATH '$.error', retry_seconds DOUBLE PATH '$.retry_seconds',
    is_final TINYINT PATH '$.is_final', next_status VARCHAR(10) PATH '$.next_status',
    delay_seconds DOUBLE PATH '$.delay_seconds', reason LONGTEXT PATH '$.reason', progress LONGTEXT PATH '$.progress',
    suspicions INT PATH '$.suspicions'))
