-- Look whether an attempt is still ours, and keep everybody from taking it while this transaction is open [FENCE-2].
-- Beats, progress and the wish to cancel go on: they change no key. Rows: one with the transaction's id, or none.
SELECT pg_current_xact_id()::text FROM holdfast_jobs
WHERE id = :id AND attempt = :attempt AND locked_by = :worker
FOR KEY SHARE
