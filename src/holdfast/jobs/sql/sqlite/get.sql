-- One job. Rows: one or none.
SELECT job.*, :now AS read_at FROM holdfast_jobs AS job WHERE id = :id
