-- Let go of a key whose window has passed. Rows: the holder that was removed, or none.
SELECT id FROM holdfast_jobs
WHERE topic = :topic AND held_key = :unique_key AND status = 'done'
    AND (julianday(:now) - julianday(run_at)) * 86400.0 >= unique_seconds;
DELETE FROM holdfast_jobs WHERE id IN (SELECT id FROM {{batch.sql}}) AND status = 'done'
