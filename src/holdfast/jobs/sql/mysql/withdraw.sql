-- Forget a worker that stops. Rows: none.
DELETE FROM holdfast_workers WHERE id = :worker
