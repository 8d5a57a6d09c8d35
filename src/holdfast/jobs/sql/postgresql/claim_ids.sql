-- Claim the jobs that were picked under the lock of their topic; what was cancelled since then is left out.
-- The claim is the lease grant [CLAIM-1]. Rows: the claimed jobs.
WITH picked AS (
    SELECT job.id
    FROM unnest(:ids::bigint[]) AS asked (id)
    JOIN holdfast_jobs AS job ON job.id = asked.id
    WHERE job.status = 'ready'
    FOR UPDATE OF job SKIP LOCKED
)
{{grant.sql}}
