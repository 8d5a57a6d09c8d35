-- Put ended jobs back by hand: the attempt goes on growing, the failures start anew. Rows: what is put back.
SELECT job.id, job.topic
FROM {{asked.sql}}
WHERE job.status IN ('dead', 'cancelled', 'scheduled', 'suspect')
FOR UPDATE;
UPDATE {{asked.sql}}
SET job.status = 'ready', job.run_at = :now, job.ready_at = :now, job.failures = 0, job.suspicions = 0, job.cancel_reason = NULL, job.held_key = job.unique_key
