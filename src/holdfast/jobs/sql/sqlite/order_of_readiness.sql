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
