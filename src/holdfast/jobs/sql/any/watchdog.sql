-- name: held_by
-- How many jobs a worker holds. Rows: one.
SELECT count(*) FROM holdfast_jobs WHERE status = 'running' AND locked_by = :worker

-- name: forget_remote_workers
-- Forget the workers of servers that were forgotten. Rows: none.
DELETE FROM holdfast_remote_workers WHERE server NOT IN (SELECT name FROM holdfast_job_servers)

-- name: receipt_key
-- The key that receipts are signed with. Rows: one.
SELECT secret FROM holdfast_job_keys WHERE name = 'receipts'

-- name: applications
-- Which applications have workers that were seen within :seconds. Rows: one for each of them.
SELECT DISTINCT application FROM holdfast_workers
WHERE application IS NOT NULL AND {{is_alive}}

-- name: workers
-- What the workers can run that were seen within :seconds. Rows: one for each of them.
SELECT operations FROM holdfast_workers WHERE {{is_alive}}

-- name: forget_workers
-- Forget workers that were not seen for so long: they died. Rows: none.
DELETE FROM holdfast_workers WHERE NOT {{is_alive}}
