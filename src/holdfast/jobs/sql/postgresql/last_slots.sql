-- How far each periodic job has come. Rows: one per periodic job that was ever seen.
SELECT name, last_run_at FROM holdfast_periodic
