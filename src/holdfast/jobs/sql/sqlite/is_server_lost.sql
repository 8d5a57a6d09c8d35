-- Whether the server of the remote worker that holds the job was not seen after the lease had run out.
EXISTS (SELECT 1 FROM holdfast_remote_workers AS remote
    LEFT JOIN holdfast_job_servers AS server ON server.name = remote.server
    WHERE remote.owner = job.locked_by AND (server.seen_at IS NULL OR server.seen_at < job.lease_until))
