-- Move a periodic job on to :slot, unless someone else has [PERIODIC-1]. Counted: one row changes when it was us.
INSERT INTO holdfast_periodic (name, last_run_at) VALUES (:name, '1000-01-01')
ON DUPLICATE KEY UPDATE name = VALUES(name);
UPDATE holdfast_periodic SET last_run_at = :slot WHERE name = :name AND last_run_at < :slot
