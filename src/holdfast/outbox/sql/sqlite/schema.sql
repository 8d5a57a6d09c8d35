-- name: schema
-- The outbox. One writer at a time: positions are in the order of commits.
CREATE TABLE IF NOT EXISTS holdfast_outbox (
    position        integer PRIMARY KEY AUTOINCREMENT,
    message_id      text NOT NULL UNIQUE,
    message_type    text NOT NULL,
    data            text NOT NULL,
    headers         text,
    message_key     text,
    key_hash        integer NOT NULL,
    correlation_id  text NOT NULL,
    causation_id    text,
    appended_at     text NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f000', 'now'))
);

-- How far each processor is, per version and partition. The lease is elsewhere: this row is written with the effects.
CREATE TABLE IF NOT EXISTS holdfast_processor_checkpoints (
    processor_id                  text NOT NULL,
    version                       integer NOT NULL,
    partition_number              integer NOT NULL,
    partitions                    integer NOT NULL DEFAULT 1,
    reading_order                 text NOT NULL DEFAULT 'transaction',
    role                          text NOT NULL DEFAULT 'active',
    status                        text NOT NULL DEFAULT 'running',
    reason                        text,
    fencing_token                 integer NOT NULL DEFAULT 0,
    last_processed_transaction_id integer,
    last_processed_position       integer,
    highest_position              integer,
    system_identifier             text,
    timeline                      integer,
    rebuild_transaction_id        integer,
    rebuild_position              integer,
    rebuild_started_at            text,
    updated_at                    text NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f000', 'now')),
    PRIMARY KEY (processor_id, version, partition_number),
    CHECK ((last_processed_transaction_id IS NULL) = (last_processed_position IS NULL))
);

-- Instances that found their processor taken and wait for it.
CREATE TABLE IF NOT EXISTS holdfast_processor_waiting (
    processor_id      text NOT NULL,
    version           integer NOT NULL,
    partition_number  integer NOT NULL,
    instance_id       text NOT NULL,
    seen_at           text NOT NULL,
    PRIMARY KEY (processor_id, version, partition_number, instance_id)
);

-- Dead letters that were put back: delivered alone, before anything else of their processor.
CREATE TABLE IF NOT EXISTS holdfast_processor_redeliveries (
    id                integer PRIMARY KEY AUTOINCREMENT,
    processor_id      text NOT NULL,
    version           integer NOT NULL,
    partition_number  integer NOT NULL,
    message           text NOT NULL,
    attempts          integer NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS holdfast_processor_redeliveries_order
    ON holdfast_processor_redeliveries (processor_id, version, partition_number, id);
