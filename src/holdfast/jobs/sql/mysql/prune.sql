-- Forget ended jobs that are older than :seconds, dead ones once no dead letter of theirs is open; the history has its own
-- retention. Rows: their ids.
SELECT id FROM holdfast_jobs AS job FORCE INDEX (holdfast_jobs_due)
WHERE status IN ('dead', 'cancelled', 'done')
    AND NOT (status = 'dead' AND EXISTS (
        SELECT 1 FROM holdfast_dead_letters AS letter
        WHERE letter.item_id = CONCAT('job-', job.id) AND letter.status = 'Pending'))
    AND TIMESTAMPDIFF(MICROSECOND, COALESCE(run_at, created_at), :now) / 1e6 > COALESCE(unique_seconds, 0) + :seconds
LIMIT :limit
FOR UPDATE SKIP LOCKED;
DELETE job FROM {{asked.sql}} WHERE job.status IN ('dead', 'cancelled', 'done')
