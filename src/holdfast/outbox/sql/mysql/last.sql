-- How many messages are committed: those without a position get the next ones. Rows: 1.
SELECT 0, sequence.last_position + (SELECT COUNT(*) FROM holdfast_outbox WHERE position IS NULL)
FROM holdfast_outbox_sequence AS sequence WHERE sequence.id = 1
