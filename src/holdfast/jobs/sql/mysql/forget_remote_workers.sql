-- Forget the workers of servers that were forgotten. Rows: none.
DELETE FROM holdfast_remote_workers WHERE server NOT IN (SELECT name FROM holdfast_job_servers)
