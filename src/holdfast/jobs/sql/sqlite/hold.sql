-- Look whether an attempt is still ours [FENCE-2]. No lock, which would stop the beats. Rows: one or none.
SELECT NULL FROM holdfast_jobs
WHERE id = :id AND attempt = :attempt AND locked_by = :worker
