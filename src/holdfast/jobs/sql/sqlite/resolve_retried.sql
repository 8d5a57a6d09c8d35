-- Resolve the dead letters of jobs that were put back. Rows: none. The + keeps to the index of items: most are pending.
UPDATE holdfast_dead_letters
SET status = 'Resolved', resolution_notes = 'Retried', resolved_at = :now, resolved_by = :actor, retried_as = item_id
WHERE item_id IN (SELECT json_extract(value, '$.item_id') FROM json_each(:batch)) AND +status = 'Pending'
    AND engine LIKE 'jobs:%'
