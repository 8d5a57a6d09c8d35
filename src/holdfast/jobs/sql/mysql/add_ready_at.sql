-- What is in the queue already became ready long before anything new, all at once, and keeps the order of its ids; a
-- constant, so the table is not copied.
ALTER TABLE holdfast_jobs ADD COLUMN ready_at DATETIME(6) NOT NULL DEFAULT '2000-01-01 00:00:00'
