-- Put ended jobs back by hand: the attempt goes on growing, the failures start anew. Rows: what was put back.
UPDATE holdfast_jobs AS job
SET status = 'ready', run_at = :now, ready_at = :now, failures = 0, suspicions = 0, cancel_reason = NULL, held_key = job.unique_key
FROM unnest(:ids::bigint[]) AS asked (id)
WHERE job.id = asked.id AND job.status IN ('dead', 'cancelled', 'scheduled', 'suspect')
RETURNING job.id, job.topic
