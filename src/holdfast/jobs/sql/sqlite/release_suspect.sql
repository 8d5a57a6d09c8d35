-- Let one suspect be claimed, in the transaction that claims it: nobody else sees it ready. Rows: one, or none when another
-- worker was first.
SELECT job.id, job.suspicions
{{asked.sql}}
WHERE job.status = 'suspect' AND job.run_at <= :now;
UPDATE holdfast_jobs AS job SET status = 'ready'
FROM {{batch.sql}} AS report
WHERE job.id = report.id
