-- Note when a periodic job was first seen: its slots count from then. Rows: none.
INSERT INTO holdfast_periodic (name, last_run_at) VALUES (:name, :slot) ON DUPLICATE KEY UPDATE name = VALUES(name)
