-- part: is_server_lost
-- Whether the server of the remote worker that holds the job was not seen after the lease had run out.
EXISTS (SELECT 1 FROM holdfast_remote_workers AS remote
    LEFT JOIN holdfast_job_servers AS server ON server.name = remote.server
    WHERE remote.owner = job.locked_by AND (server.seen_at IS NULL OR server.seen_at < job.lease_until))

-- part: is_charged
-- Whether the loss of its worker is counted against the attempt [SUSPECT-1]: its begin was recorded, and it was not the
-- server of a remote worker that died. A job that may run once is never given back after it may have begun [ONCE-1].
-- A cancelled one ends.
(job.cancel_reason IS NOT NULL
    OR (COALESCE(job.max_attempts, 0) = 1 AND job.begun_attempt <> -job.attempt)
    OR (job.begun_attempt = job.attempt AND NOT {{is_server_lost}}))

-- part: is_innocent
-- Whether the job cannot be what its worker died of: it had not begun, or it was the server that died.
(COALESCE(job.max_attempts, 0) = 1 OR {{is_server_lost}})
