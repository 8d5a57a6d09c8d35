-- The last message that was committed, whether or not it can be read yet. Rows: 1, or none when there is none.
SELECT transaction_id, position
FROM holdfast_outbox
ORDER BY transaction_id DESC, position DESC
LIMIT 1
