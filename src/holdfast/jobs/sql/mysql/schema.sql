-- name: schema
-- The queue and what governs it. A row is a job that has not ended, or one that ended dead, cancelled, or done inside
-- its window of uniqueness; every other end leaves only history. Times are in UTC.
-- There are no partial indexes here, so status leads; only running jobs have a lease, so lease_until needs no status.
CREATE TABLE IF NOT EXISTS holdfast_jobs (
    id                 BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    topic              VARCHAR(140) NOT NULL,
    operation          VARCHAR(200) NOT NULL,
    payload            LONGTEXT NOT NULL,
    status             VARCHAR(10) NOT NULL DEFAULT 'ready',
    priority           SMALLINT NOT NULL DEFAULT 0,
    limit_key          VARCHAR(200),
    attempt            INT NOT NULL DEFAULT 0,
    failures           INT NOT NULL DEFAULT 0,
    max_attempts       INT,
    retry_base_seconds DOUBLE NOT NULL DEFAULT 1,
    retry_max_seconds  DOUBLE NOT NULL DEFAULT 3600,
    lease_seconds      DOUBLE NOT NULL DEFAULT 30,
    run_at             DATETIME(6),
    created_at         DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    started_at         DATETIME(6),
    locked_by          VARCHAR(200),
    lease_until        DATETIME(6),
    unique_key         VARCHAR(200),
    held_key           VARCHAR(200),
    unique_seconds     DOUBLE,
    correlation_id     VARCHAR(200),
    instance_id        VARCHAR(200),
    tags               LONGTEXT,
    progress           LONGTEXT,
    cancel_reason      LONGTEXT,
    first_failed_at    DATETIME(6),
    last_failed_at     DATETIME(6),
    last_error         LONGTEXT,
    INDEX holdfast_jobs_by_key (status, topic, limit_key, priority DESC, id),
    INDEX holdfast_jobs_due (status, run_at),
    INDEX holdfast_jobs_lease (lease_until),
    UNIQUE INDEX holdfast_jobs_held (topic, held_key),
    CONSTRAINT holdfast_jobs_owner CHECK ((status = 'running') = (locked_by IS NOT NULL)),
    CONSTRAINT holdfast_jobs_leased CHECK ((status = 'running') = (lease_until IS NOT NULL)),
    CONSTRAINT holdfast_jobs_timed CHECK (status <> 'scheduled' OR run_at IS NOT NULL)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE {{key_collation}};

CREATE TABLE IF NOT EXISTS holdfast_topics (
    topic                   VARCHAR(150) NOT NULL PRIMARY KEY,
    is_paused               TINYINT NOT NULL DEFAULT 0,
    is_limited              TINYINT NOT NULL DEFAULT 0,
    max_running             INT,
    max_running_per_key     INT,
    rate_count              INT,
    rate_seconds            DOUBLE,
    rate_count_per_key      INT,
    rate_seconds_per_key    DOUBLE,
    updated_at              DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6))
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE {{key_collation}};
-- A rate's bucket: tokens there were at refilled_at. The bucket of a whole topic has the empty key.
CREATE TABLE IF NOT EXISTS holdfast_rate_buckets (
    topic                   VARCHAR(150) NOT NULL,
    limit_key               VARCHAR(200) NOT NULL,
    tokens                  DOUBLE NOT NULL,
    refilled_at             DATETIME(6) NOT NULL,
    PRIMARY KEY (topic, limit_key)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE {{key_collation}};
CREATE TABLE IF NOT EXISTS holdfast_periodic (
    name                    VARCHAR(200) NOT NULL PRIMARY KEY,
    last_run_at             DATETIME(6) NOT NULL
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE {{key_collation}};

-- name: schema_keys
-- What the servers of remote workers sign receipts with.
CREATE TABLE IF NOT EXISTS holdfast_job_keys (
    name                    VARCHAR(100) NOT NULL PRIMARY KEY,
    secret                  VARCHAR(100) NOT NULL
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE {{key_collation}}

-- name: schema_suspects
-- Who serves remote workers, and when it was last seen; whom each remote worker was last connected to.
CREATE TABLE IF NOT EXISTS holdfast_job_servers (
    name                    VARCHAR(200) NOT NULL PRIMARY KEY,
    seen_at                 DATETIME(6) NOT NULL
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE {{key_collation}};
CREATE TABLE IF NOT EXISTS holdfast_remote_workers (
    owner                   VARCHAR(200) NOT NULL PRIMARY KEY,
    server                  VARCHAR(200) NOT NULL
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE {{key_collation}}

-- name: add_ready_at
-- What is in the queue already became ready long before anything new, all at once, and keeps the order of its ids; a
-- constant, so the table is not copied.
ALTER TABLE holdfast_jobs ADD COLUMN ready_at DATETIME(6) NOT NULL DEFAULT '2000-01-01 00:00:00'

-- name: order_of_readiness
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
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE {{key_collation}};

-- name: add_reserved_at
-- When somebody was last ready to test a suspect for which there was no room in its topic.
ALTER TABLE holdfast_jobs ADD COLUMN reserved_at DATETIME(6)
