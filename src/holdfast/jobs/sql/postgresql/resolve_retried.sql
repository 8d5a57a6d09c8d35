-- Resolve the dead letters of jobs that were put back. Rows: how many.
UPDATE holdfast_dead_letters
SET status = 'Resolved', resolution_notes = 'Retried', resolved_at = :now, resolved_by = :actor, retried_as = item_id
WHERE item_id = ANY (:items::text[]) AND status = 'Pending' AND engine LIKE 'jobs:%'
RETURNING row_key
