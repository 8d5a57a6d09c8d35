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
