-- Who holds a key now, also when the caller's transaction began before that job was added. Rows: one or none.
SELECT id FROM holdfast_jobs WHERE topic = :topic AND held_key = :unique_key LOCK IN SHARE MODE
