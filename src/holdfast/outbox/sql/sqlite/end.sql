-- The last message that can be read now. Rows: 1, or none when there is none.
SELECT 0, position FROM holdfast_outbox WHERE position IS NOT NULL ORDER BY position DESC LIMIT 1
