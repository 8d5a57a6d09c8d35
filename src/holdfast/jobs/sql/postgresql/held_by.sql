-- How many jobs a worker holds. Rows: one.
SELECT count(*) FROM holdfast_jobs WHERE status = 'running' AND locked_by = :worker
