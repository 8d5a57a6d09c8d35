-- How many messages lie behind a position, counted up to a limit. Rows: 1.
SELECT count(*) FROM (SELECT FROM holdfast_outbox WHERE position > :after_position LIMIT :most) AS found
