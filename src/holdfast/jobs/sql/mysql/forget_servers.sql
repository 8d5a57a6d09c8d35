-- Forget servers that are long gone. Rows: none.
DELETE FROM holdfast_job_servers WHERE seen_at < :now - INTERVAL 1 DAY
