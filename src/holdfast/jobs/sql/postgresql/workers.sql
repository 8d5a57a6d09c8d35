-- What the workers can run that were seen within :seconds. Rows: one for each of them.
SELECT operations FROM holdfast_workers WHERE NOT (seen_at < :now - :seconds * interval '1 second')
