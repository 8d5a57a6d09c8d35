-- Extend leases and tell how far the work is [FENCE-2]. Rows: what is still ours.
SELECT job.id, job.attempt FROM {{claims.sql}} FOR UPDATE;
UPDATE {{claims.sql}}
SET job.lease_until = :now + job.lease_seconds seconds, job.progress = report.progress
