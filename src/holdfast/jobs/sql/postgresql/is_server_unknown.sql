-- Whether nobody knows yet: the server was not seen since, but a moment ago.
EXISTS (SELECT 1 FROM holdfast_remote_workers AS remote
    JOIN holdfast_job_servers AS server ON server.name = remote.server
    WHERE remote.owner = job.locked_by AND server.seen_at < job.lease_until
        AND server.seen_at > :now - interval '5 seconds')
