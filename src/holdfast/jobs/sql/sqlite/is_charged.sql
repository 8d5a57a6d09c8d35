-- Whether the loss of its worker is counted against the attempt [SUSPECT-1]: its begin was recorded, and it was not the
-- server of a remote worker that died. A job that may run once is never given back after it may have begun [ONCE-1].
-- A cancelled one ends.
(job.cancel_reason IS NOT NULL
    OR (COALESCE(job.max_attempts, 0) = 1 AND (job.begun_attempt <> -job.attempt OR job.locked_by LIKE 'remote:%'))
    OR (job.begun_attempt = job.attempt AND NOT {{is_server_lost.sql}}))
