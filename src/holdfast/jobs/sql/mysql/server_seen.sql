-- Note that a server of remote workers is alive. Rows: none.
INSERT INTO holdfast_job_servers (name, seen_at) VALUES (:name, :now)
ON DUPLICATE KEY UPDATE seen_at = VALUES(seen_at)
