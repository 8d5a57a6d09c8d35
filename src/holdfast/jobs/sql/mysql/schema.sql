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
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

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
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
-- A rate's bucket: tokens there were at refilled_at. The bucket of a whole topic has the empty key.
CREATE TABLE IF NOT EXISTS holdfast_rate_buckets (
    topic                   VARCHAR(150) NOT NULL,
    limit_key               VARCHAR(200) NOT NULL,
    tokens                  DOUBLE NOT NULL,
    refilled_at             DATETIME(6) NOT NULL,
    PRIMARY KEY (topic, limit_key)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
CREATE TABLE IF NOT EXISTS holdfast_periodic (
    name                    VARCHAR(200) NOT NULL PRIMARY KEY,
    last_run_at             DATETIME(6) NOT NULL
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
