-- Tell that a worker is there and what it can run. Rows: none.
INSERT INTO holdfast_workers (id, host, pid, operations, started_at, seen_at)
VALUES (:worker, :host, :pid, :operations, :now, :now)
ON CONFLICT (id) DO UPDATE SET operations = excluded.operations, seen_at = excluded.seen_at
