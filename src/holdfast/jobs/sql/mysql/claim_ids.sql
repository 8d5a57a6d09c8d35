-- Claim the jobs that were picked under the lock of their topic; what was cancelled since then is left out.
-- The claim is the lease grant [CLAIM-1]. Rows: the claimed jobs.
SELECT {{claimed_columns.sql}}
FROM {{asked.sql}}
WHERE job.status = 'ready'
FOR UPDATE SKIP LOCKED;
{{grant.sql}}
