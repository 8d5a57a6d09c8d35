-- name: schema
-- The outbox. Rows are committed without a position; the sequencer gives them one, in the order in which they are read.
CREATE TABLE IF NOT EXISTS holdfast_outbox (
    id                 bigint NOT NULL AUTO_INCREMENT PRIMARY KEY,
    position           bigint,
    transaction_group  char(16) NOT NULL,
    append_id          char(16) NOT NULL,
    message_id         varchar(200) NOT NULL,
    message_type       varchar(200) NOT NULL,
    data               longtext NOT NULL,
    headers            longtext,
    message_key        varchar(200),
    key_hash           integer NOT NULL,
    correlation_id     varchar(200) NOT NULL,
    causation_id       varchar(200),
    appended_at        datetime(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    UNIQUE KEY holdfast_outbox_order (position),
    UNIQUE KEY holdfast_outbox_message (message_id),
    KEY holdfast_outbox_group (transaction_group)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = {{key_collation}};

-- The last position that was given: one row, locked by whoever gives the next ones.
CREATE TABLE IF NOT EXISTS holdfast_outbox_sequence (
    id             integer NOT NULL PRIMARY KEY,
    last_position  bigint NOT NULL,
    fencing_token  bigint NOT NULL
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = {{key_collation}};
INSERT INTO holdfast_outbox_sequence (id, last_position, fencing_token) VALUES (1, 0, 0) ON DUPLICATE KEY UPDATE id = id;

-- How far each processor is, per version and partition. The lease is elsewhere: this row is written with the effects.
CREATE TABLE IF NOT EXISTS holdfast_processor_checkpoints (
    processor_id                  varchar(100) NOT NULL,
    version                       integer NOT NULL,
    partition_number              integer NOT NULL,
    partitions                    integer NOT NULL DEFAULT 1,
    reading_order                 varchar(16) NOT NULL DEFAULT 'transaction',
    role                          varchar(16) NOT NULL DEFAULT 'active',
    status                        varchar(16) NOT NULL DEFAULT 'running',
    reason                        longtext,
    fencing_token                 bigint NOT NULL DEFAULT 0,
    last_processed_transaction_id bigint,
    last_processed_position       bigint,
    highest_position              bigint,
    system_identifier             varchar(40),
    timeline                      integer,
    rebuild_transaction_id        bigint,
    rebuild_position              bigint,
    rebuild_started_at            datetime(6),
    updated_at                    datetime(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    PRIMARY KEY (processor_id, version, partition_number)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = {{key_collation}};

-- Instances that found their processor taken and wait for it.
CREATE TABLE IF NOT EXISTS holdfast_processor_waiting (
    processor_id      varchar(100) NOT NULL,
    version           integer NOT NULL,
    partition_number  integer NOT NULL,
    instance_id       varchar(200) NOT NULL,
    seen_at           datetime(6) NOT NULL,
    PRIMARY KEY (processor_id, version, partition_number, instance_id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = {{key_collation}};

-- Dead letters that were put back: delivered alone, before anything else of their processor.
CREATE TABLE IF NOT EXISTS holdfast_processor_redeliveries (
    id                bigint NOT NULL AUTO_INCREMENT PRIMARY KEY,
    processor_id      varchar(100) NOT NULL,
    version           integer NOT NULL,
    partition_number  integer NOT NULL,
    message           longtext NOT NULL,
    attempts          integer NOT NULL DEFAULT 0,
    KEY holdfast_processor_redeliveries_order (processor_id, version, partition_number, id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = {{key_collation}};
