-- Let one suspect be claimed, in the transaction that claims it: nobody else sees it ready. Rows: one, or none when another
-- worker was first.
UPDATE holdfast_jobs AS job SET status = 'ready'
FROM unnest(:ids::bigint[]) AS asked (id)
WHERE job.id = asked.id AND job.status = 'suspect' AND job.run_at <= :now
RETURNING job.id, job.suspicions
