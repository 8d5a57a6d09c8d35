-- Note that a server of remote workers is alive. Rows: none.
INSERT INTO holdfast_job_servers (name, seen_at) VALUES (:name, :now)
ON CONFLICT (name) DO UPDATE SET seen_at = excluded.seen_at
