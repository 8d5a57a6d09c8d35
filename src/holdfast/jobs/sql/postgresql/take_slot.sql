-- Move a periodic job on to :slot, unless someone else has [PERIODIC-1]. Rows: one when it was us.
INSERT INTO holdfast_periodic (name, last_run_at) VALUES (:name, :slot)
ON CONFLICT (name) DO UPDATE SET last_run_at = excluded.last_run_at
    WHERE holdfast_periodic.last_run_at < excluded.last_run_at
RETURNING name
