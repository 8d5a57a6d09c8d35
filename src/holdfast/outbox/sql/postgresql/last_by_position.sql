-- The highest position that was committed. Rows: 1, or none when there is none.
SELECT 0, position FROM holdfast_outbox ORDER BY position DESC LIMIT 1
