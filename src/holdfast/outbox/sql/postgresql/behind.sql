-- How many messages lie behind a checkpoint in the order of transactions, counted up to a limit. Rows: 1.
SELECT count(*) FROM (
    SELECT FROM holdfast_outbox
    WHERE (transaction_id, position) > (:after_transaction::xid8, :after_position)
    LIMIT :most) AS found
