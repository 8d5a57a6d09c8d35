-- Note which server a remote worker is connected to. Rows: none.
INSERT INTO holdfast_remote_workers (owner, server) VALUES (:owner, :server)
ON DUPLICATE KEY UPDATE server = VALUES(server)
