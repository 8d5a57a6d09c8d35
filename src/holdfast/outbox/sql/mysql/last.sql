-- The position of the last message that is committed: those without one get the next ones. Rows: 1, NULL when there is none.
SELECT 0, IF(waiting.messages > 0, sequence.last_position + waiting.messages,
    (SELECT MAX(position) FROM holdfast_outbox))
FROM holdfast_outbox_sequence AS sequence,
    (SELECT COUNT(*) AS messages FROM holdfast_outbox WHERE position IS NULL) AS waiting
WHERE sequence.id = 1
