-- How many messages lie behind a position or have none yet, counted up to a limit. Rows: 1.
SELECT COUNT(*) FROM (
    SELECT 1 FROM holdfast_outbox WHERE position > :after_position OR position IS NULL LIMIT :most) AS found
