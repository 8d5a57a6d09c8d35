-- Forget servers that are long gone. Rows: none.
DELETE FROM holdfast_job_servers WHERE julianday(:now) - julianday(seen_at) > 1
