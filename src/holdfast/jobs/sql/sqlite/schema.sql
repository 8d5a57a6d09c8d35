-- name: schema
-- The queue and what governs it. A row is a job that has not ended, or one that ended dead, cancelled, or done inside
-- its window of uniqueness; every other end leaves only history. Times are text in UTC that sorts as it should.
-- Ids are never used again: a report for a job that is gone must not meet another.
CREATE TABLE IF NOT EXISTS holdfast_jobs (
    id                 INTEGER PRIMARY KEY AUTOINCREMENT,
    topic              TEXT NOT NULL,
    operation          TEXT NOT NULL,
    payload            TEXT NOT NULL,
    status             TEXT NOT NULL DEFAULT 'ready',
    priority           INTEGER NOT NULL DEFAULT 0,
    limit_key          TEXT,
    attempt            INTEGER NOT NULL DEFAULT 0,
    failures           INTEGER NOT NULL DEFAULT 0,
    max_attempts       INTEGER,
    retry_base_seconds REAL NOT NULL DEFAULT 1,
    retry_max_seconds  REAL NOT NULL DEFAULT 3600,
    lease_seconds      REAL NOT NULL DEFAULT 30,
    run_at             TEXT,
    created_at         TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f000', 'now')),
    started_at         TEXT,
    locked_by          TEXT,
    lease_until        TEXT,
    unique_key         TEXT,
    held_key           TEXT,
    unique_seconds     REAL,
    correlation_id     TEXT,
    instance_id        TEXT,
    tags               TEXT,
    progress           TEXT,
    cancel_reason      TEXT,
    first_failed_at    TEXT,
    last_failed_at     TEXT,
    last_error         TEXT,
    CHECK (length(topic) <= 140 AND length(operation) <= 200), -- what history and dead letters can hold
    CHECK (length(correlation_id) <= 200 AND length(instance_id) <= 200),
    CHECK ((status = 'running') = (locked_by IS NOT NULL)),
    CHECK ((status = 'running') = (lease_until IS NOT NULL)),
    CHECK (status <> 'scheduled' OR run_at IS NOT NULL)
);
CREATE INDEX IF NOT EXISTS holdfast_jobs_ready ON holdfast_jobs (topic, priority DESC, id)
    WHERE status = 'ready' AND limit_key IS NULL;
CREATE INDEX IF NOT EXISTS holdfast_jobs_ready_by_key ON holdfast_jobs (topic, limit_key, priority DESC, id)
    WHERE status = 'ready' AND limit_key IS NOT NULL;
CREATE INDEX IF NOT EXISTS holdfast_jobs_due ON holdfast_jobs (run_at) WHERE status = 'scheduled';
CREATE INDEX IF NOT EXISTS holdfast_jobs_running ON holdfast_jobs (topic, limit_key) WHERE status = 'running';
CREATE INDEX IF NOT EXISTS holdfast_jobs_lease ON holdfast_jobs (lease_until) WHERE status = 'running';
CREATE INDEX IF NOT EXISTS holdfast_jobs_ended ON holdfast_jobs (id)
    WHERE status IN ('dead', 'cancelled', 'done');
CREATE UNIQUE INDEX IF NOT EXISTS holdfast_jobs_held ON holdfast_jobs (topic, held_key) WHERE held_key IS NOT NULL;

CREATE TABLE IF NOT EXISTS holdfast_topics (
    topic                   TEXT NOT NULL PRIMARY KEY,
    is_paused               INTEGER NOT NULL DEFAULT 0,
    is_limited              INTEGER NOT NULL DEFAULT 0,
    max_running             INTEGER,
    max_running_per_key     INTEGER,
    rate_count              INTEGER,
    rate_seconds            REAL,
    rate_count_per_key      INTEGER,
    rate_seconds_per_key    REAL,
    updated_at              TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f000', 'now'))
);
-- A rate's bucket: tokens there were at refilled_at. The bucket of a whole topic has the empty key.
CREATE TABLE IF NOT EXISTS holdfast_rate_buckets (
    topic                   TEXT NOT NULL,
    limit_key               TEXT NOT NULL,
    tokens                  REAL NOT NULL,
    refilled_at             TEXT NOT NULL,
    PRIMARY KEY (topic, limit_key)
);
CREATE TABLE IF NOT EXISTS holdfast_periodic (
    name                    TEXT NOT NULL PRIMARY KEY,
    last_run_at             TEXT NOT NULL
);

-- name: schema_keys
-- What the servers of remote workers sign receipts with.
CREATE TABLE IF NOT EXISTS holdfast_job_keys (
    name                    TEXT NOT NULL PRIMARY KEY,
    secret                  TEXT NOT NULL
)

-- name: schema_suspects
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

-- name: add_ready_at
-- NULL, as in jobs that workers of the release before add, says that a job was ready when it was added.
ALTER TABLE holdfast_jobs ADD COLUMN ready_at TEXT

-- name: order_of_readiness
-- Jobs are claimed by operation, in the order in which they became ready.
DROP INDEX IF EXISTS holdfast_jobs_ready;
DROP INDEX IF EXISTS holdfast_jobs_ready_by_key;
CREATE INDEX holdfast_jobs_ready
    ON holdfast_jobs (topic, operation, priority DESC, COALESCE(ready_at, created_at), id)
    WHERE status = 'ready' AND limit_key IS NULL;
CREATE INDEX holdfast_jobs_ready_by_key
    ON holdfast_jobs (topic, operation, limit_key, priority DESC, COALESCE(ready_at, created_at), id)
    WHERE status = 'ready' AND limit_key IS NOT NULL;

-- Who works here, and on what: a JSON object of lists of operations by topic, null for any operation of a topic.
CREATE TABLE IF NOT EXISTS holdfast_workers (
    id                      TEXT NOT NULL PRIMARY KEY,
    host                    TEXT NOT NULL,
    pid                     INTEGER NOT NULL,
    operations              TEXT NOT NULL,
    started_at              TEXT NOT NULL,
    seen_at                 TEXT NOT NULL
);

-- name: add_reserved_at
-- When somebody was last ready to test a suspect for which there was no room in its topic.
ALTER TABLE holdfast_jobs ADD COLUMN reserved_at TEXT
