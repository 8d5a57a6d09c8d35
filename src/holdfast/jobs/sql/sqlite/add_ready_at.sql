-- NULL, as in jobs that workers of the release before add, says that a job was ready when it was added.
ALTER TABLE holdfast_jobs ADD COLUMN ready_at TEXT
