-- Resolve the dead letters of jobs that were put back. Rows: none.
UPDATE JSON_TABLE(:batch, '$[*]' COLUMNS (item_id VARCHAR(200) PATH '$.item_id')) AS asked
STRAIGHT_JOIN holdfast_dead_letters AS letter FORCE INDEX (holdfast_dead_letters_item) ON letter.item_id = asked.item_id
SET letter.status = 'Resolved', letter.resolution_notes = 'Retried', letter.resolved_at = :now,
    letter.resolved_by = :actor, letter.retried_as = letter.item_id
WHERE letter.status = 'Pending' AND letter.engine LIKE 'jobs:%'
