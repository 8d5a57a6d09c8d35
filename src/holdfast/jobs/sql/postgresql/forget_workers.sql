-- Forget workers that were not seen for so long: they died. Rows: none.
DELETE FROM holdfast_workers WHERE seen_at < :now - :seconds * interval '1 second'
