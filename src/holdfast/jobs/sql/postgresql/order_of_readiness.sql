-- Jobs are claimed by operation, in the order in which they became ready. Beside workers of the release before: they name
-- the columns they write, so the default tells when their jobs became ready.
ALTER TABLE holdfast_jobs ALTER COLUMN ready_at SET DEFAULT clock_timestamp();
-- No index holds lease_until or progress, so that heartbeats stay heap-only updates. The priority is negated so that
-- (priority, ready_at, id) can be compared as one place.
DROP INDEX IF EXISTS holdfast_jobs_ready;
DROP INDEX IF EXISTS holdfast_jobs_ready_by_key;
CREATE INDEX holdfast_jobs_ready ON holdfast_jobs (topic, operation, (-priority::integer), ready_at, id)
    WHERE status = 'ready' AND limit_key IS NULL;
CREATE INDEX holdfast_jobs_ready_by_key
    ON holdfast_jobs (topic, operation, limit_key, (-priority::integer), ready_at, id)
    WHERE status = 'ready' AND limit_key IS NOT NULL;

-- Who works here, and on what: a JSON object of lists of operations by topic, null for any operation of a topic.
CREATE TABLE IF NOT EXISTS holdfast_workers (
    id                      text PRIMARY KEY,
    host                    text NOT NULL,
    pid                     integer NOT NULL,
    operations              text NOT NULL,
    started_at              timestamptz NOT NULL,
    seen_at                 timestamptz NOT NULL
);
