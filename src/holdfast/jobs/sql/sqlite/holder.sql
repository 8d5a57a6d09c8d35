-- Who holds a key. Rows: one or none.
SELECT id FROM holdfast_jobs WHERE topic = :topic AND held_key = :unique_key
