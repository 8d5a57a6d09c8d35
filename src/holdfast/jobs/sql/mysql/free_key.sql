-- Let go of a key whose window has passed. Rows: the holder that was removed, or none.
-- The look comes first and locks nothing: a DELETE that finds nothing would lock the gap in the caller's transaction.
SELECT id FROM holdfast_jobs
WHERE topic = :topic AND held_key = :unique_key AND status = 'done'
    AND TIMESTAMPDIFF(MICROSECOND, run_at, :now) / 1e6 >= unique_seconds;
DELETE job FROM {{asked.sql}} WHERE job.status = 'done'
