-- Who serves remote workers, and when it was last seen; whom each remote worker was last connected to.
CREATE TABLE IF NOT EXISTS holdfast_job_servers (
    name                    TEXT NOT NULL PRIMARY KEY,
    seen_at                 TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS holdfast_remote_workers (
    owner                   TEXT NOT NULL PRIMARY KEY,
    server                  TEXT NOT NULL
);
-- Where workers look for suspects: empty unless a worker has died.
CREATE INDEX IF NOT EXISTS holdfast_jobs_suspects ON holdfast_jobs (run_at) WHERE status = 'suspect'
