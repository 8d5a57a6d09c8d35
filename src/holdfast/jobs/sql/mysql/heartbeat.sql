-- Extend every lease that is still ours [FENCE-2]. Rows: what is still ours; what is missing must be stopped.
SELECT job.id, job.attempt, job.cancel_reason FROM {{claims.sql}} FOR UPDATE;
UPDATE {{claims.sql}}
SET job.lease_until = :now + job.lease_seconds seconds
