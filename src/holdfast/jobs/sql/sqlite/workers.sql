-- What the workers can run that were seen within :seconds. Rows: one for each of them.
SELECT operations FROM holdfast_workers WHERE NOT ((julianday(:now) - julianday(seen_at)) * 86400.0 > :seconds)
