-- Jobs are claimed by operation, in the order in which they became ready. Beside workers of the release before: they name
-- the columns they write, so the default tells when their jobs became ready, and their statements insist on an index of
-- this name. Each statement may be repeated.
ALTER TABLE holdfast_jobs ALTER COLUMN ready_at SET DEFAULT (UTC_TIMESTAMP(6));
ALTER TABLE holdfast_jobs DROP INDEX holdfast_jobs_by_key,
    ADD INDEX holdfast_jobs_by_key (status, topic, operation, limit_key, priority DESC, ready_at, id);

-- Who works here, and on what: a JSON object of lists of operations by topic, null for any operation of a topic.
CREATE TABLE IF NOT EXISTS holdfast_workers (
    id                      VARCHAR(200) NOT NULL PRIMARY KEY,
    host                    VARCHAR(255) NOT NULL,
    pid                     BIGINT NOT NULL,
    operations              LONGTEXT NOT NULL,
    started_at              DATETIME(6) NOT NULL,
    seen_at                 DATETIME(6) NOT NULL
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
