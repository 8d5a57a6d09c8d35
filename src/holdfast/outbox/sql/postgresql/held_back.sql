-- Whether committed messages wait for an older transaction, and whose that is [OUTBOX-5]. Rows: 1.
WITH present AS (SELECT pg_snapshot_xmin(pg_current_snapshot()) AS oldest)
SELECT EXISTS (SELECT FROM holdfast_outbox WHERE transaction_id >= present.oldest),
    blocker.pid, extract(epoch FROM clock_timestamp() - blocker.xact_start)::float8, blocker.datname,
    blocker.application_name, prepared.gid, extract(epoch FROM clock_timestamp() - prepared.prepared)::float8
FROM present
LEFT JOIN pg_stat_activity AS blocker ON blocker.backend_xid = present.oldest::xid
LEFT JOIN pg_prepared_xacts AS prepared ON prepared.transaction = present.oldest::xid
LIMIT 1
