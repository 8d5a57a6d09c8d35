-- Delete old messages that every processor has passed [OUTBOX-7]. Rows: up to :most.
DELETE FROM holdfast_outbox WHERE position IN (
    SELECT position FROM holdfast_outbox
    WHERE position <= :position AND position <= :below AND appended_at < :before
    ORDER BY position
    LIMIT :most)
