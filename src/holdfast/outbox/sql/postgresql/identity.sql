-- Which cluster this is, how it came to be, and the first transaction id it has not given out yet. Rows: 1.
SELECT (SELECT system_identifier::text FROM pg_control_system()),
    ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::integer,
    pg_snapshot_xmax(pg_current_snapshot())
