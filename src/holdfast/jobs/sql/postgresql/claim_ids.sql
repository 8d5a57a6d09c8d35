-- Claim jobs that this transaction has locked. The claim is the lease grant [CLAIM-1]. Rows: the claimed jobs.
WITH picked AS (SELECT unnest(:ids::bigint[]) AS id)
{{grant.sql}}
