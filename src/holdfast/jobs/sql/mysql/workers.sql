-- What the workers can run that were seen within :seconds. Rows: one for each of them.
SELECT operations FROM holdfast_workers WHERE NOT (TIMESTAMPDIFF(MICROSECOND, seen_at, :now) / 1e6 > :seconds)
