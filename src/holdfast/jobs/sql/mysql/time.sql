-- The database's time. Rows: one.
SELECT :now
