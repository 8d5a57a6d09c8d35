-- The same of some transactions, all of them. Rows: any.
SELECT message.id, message.transaction_group
FROM JSON_TABLE(:batch, '$[*]' COLUMNS (transaction_group char(16) PATH '$')) AS asked
JOIN holdfast_outbox AS message ON message.transaction_group = asked.transaction_group COLLATE utf8mb4_bin
WHERE message.position IS NULL
