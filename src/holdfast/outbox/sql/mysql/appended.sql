-- Which messages an append has added. Rows: their ids.
SELECT message_id FROM holdfast_outbox WHERE transaction_group = :transaction_group AND append_id = :append_id
