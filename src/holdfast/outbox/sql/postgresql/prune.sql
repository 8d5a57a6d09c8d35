-- Delete old messages that every processor has passed, in its own order [OUTBOX-7]. Rows: up to :most.
DELETE FROM holdfast_outbox WHERE position IN (
    SELECT position FROM holdfast_outbox
    WHERE (transaction_id, position) <= (:transaction::xid8, :position) AND position <= :below AND appended_at < :before
    ORDER BY transaction_id, position
    LIMIT :most)
