-- Forget ended jobs: done ones when their window has passed, others that are older than :seconds, dead ones of these
-- once no dead letter of theirs is open. The history has its own retention. Rows: their ids.
SELECT id FROM holdfast_jobs AS job FORCE INDEX (holdfast_jobs_due)
WHERE status IN ('dead', 'cancelled', 'done')
    AND NOT (status = 'dead' AND EXISTS (
        SELECT 1 FROM holdfast_dead_letters AS letter
        WHERE letter.item_id = CONCAT('job-', job.id) AND letter.status = 'Pending'))
    AND TIMESTAMPDIFF(MICROSECOND, COALESCE(run_at, created_at), :now) / 1e6
        > CASE WHEN status = 'done' THEN COALESCE(unique_seconds, 0) ELSE :seconds END
LIMIT :limit
FOR UPDATE SKIP LOCKED;
DELETE job FROM {{asked.sql}} WHERE job.status IN ('dead', 'cancelled', 'done')
