-- name: withdraw
-- Forget a worker that stops. Rows: none.
DELETE FROM holdfast_workers WHERE id = :worker

-- name: last_slots
-- How far each periodic job has come, and whose it is; of those from before there were applications, nobody's. Rows: one per periodic job that was ever seen.
SELECT name, last_run_at, application FROM holdfast_periodic

-- name: take_slot_back
-- Move a periodic job back from a slot that lies ahead, unless someone else has. Rows: none.
UPDATE holdfast_periodic SET last_run_at = :slot WHERE name = :name AND last_run_at = :ahead

-- name: run_slot_now
-- Let the job of a slot that lies ahead run now. Rows: none.
UPDATE holdfast_jobs SET run_at = :now
WHERE status = 'scheduled' AND run_at = :ahead AND topic = :topic AND operation = :operation
