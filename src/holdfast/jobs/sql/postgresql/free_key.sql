-- Let go of a key whose window has passed. Rows: none.
DELETE FROM holdfast_jobs
WHERE topic = :topic AND held_key = :unique_key AND status = 'done'
    AND run_at + unique_seconds * interval '1 second' <= :now
