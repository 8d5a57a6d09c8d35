-- Tell that a worker is there and what it can run. Rows: none.
INSERT INTO holdfast_workers (id, host, pid, operations, started_at, seen_at)
VALUES (:worker, :host, :pid, :operations, :now, :now)
ON DUPLICATE KEY UPDATE operations = VALUES(operations), seen_at = VALUES(seen_at)
