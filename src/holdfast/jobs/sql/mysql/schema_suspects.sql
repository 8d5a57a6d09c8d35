-- Who serves remote workers, and when it was last seen; whom each remote worker was last connected to.
CREATE TABLE IF NOT EXISTS holdfast_job_servers (
    name                    VARCHAR(200) NOT NULL PRIMARY KEY,
    seen_at                 DATETIME(6) NOT NULL
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
CREATE TABLE IF NOT EXISTS holdfast_remote_workers (
    owner                   VARCHAR(200) NOT NULL PRIMARY KEY,
    server                  VARCHAR(200) NOT NULL
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
