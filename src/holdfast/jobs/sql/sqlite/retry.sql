-- Put ended jobs back by hand: the attempt goes on growing, the failures start anew. Rows: what is put back.
SELECT job.id, job.topic
{{asked.sql}}
WHERE job.status IN ('dead', 'cancelled', 'scheduled', 'suspect');
UPDATE holdfast_jobs AS job
SET status = 'ready', run_at = :now, ready_at = :now, failures = 0, suspicions = 0, cancel_reason = NULL, held_key = job.unique_key
FROM {{batch.sql}} AS report
WHERE job.id = report.id
