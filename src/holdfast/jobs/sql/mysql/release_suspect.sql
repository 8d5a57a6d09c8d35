-- Let one suspect be claimed, in the transaction that claims it: nobody else sees it ready. Rows: one, or none when another
-- worker was first.
SELECT job.id, job.suspicions
FROM {{asked.sql}}
WHERE job.status = 'suspect' AND job.run_at <= :now
FOR UPDATE;
UPDATE {{asked.sql}} SET job.status = 'ready'
