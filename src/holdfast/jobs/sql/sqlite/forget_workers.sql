-- Forget workers that were not seen for so long: they died. Rows: none.
DELETE FROM holdfast_workers WHERE (julianday(:now) - julianday(seen_at)) * 86400.0 > :seconds
