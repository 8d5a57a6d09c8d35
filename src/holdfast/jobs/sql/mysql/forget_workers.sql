-- Forget workers that were not seen for so long: they died. Rows: none.
DELETE FROM holdfast_workers WHERE TIMESTAMPDIFF(MICROSECOND, seen_at, :now) / 1e6 > :seconds
