-- Claim the jobs that were picked under the lock of their topic. The claim is the lease grant [CLAIM-1].
-- Rows: the claimed jobs.
SELECT {{claimed_columns.sql}}
{{asked.sql}}
WHERE job.status = 'ready';
{{grant.sql}}
