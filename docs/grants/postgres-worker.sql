-- What workers and whoever enqueues, appends and sends need on PostgreSQL, and no more; `holdfast migrate` needs the
-- owner. Run it as the owner of Holdfast's tables, in their schema, after each `holdfast migrate`. It grants to a role
-- of its own, which your login roles get, and which a superuser or a role with CREATEROLE makes once:
--
--   CREATE ROLE holdfast_worker NOLOGIN;
--   GRANT holdfast_worker TO shop;
--   GRANT pg_read_all_stats TO holdfast_worker;  -- for triggers over a time column: who writes, and since when

-- Which migrations were applied, looked at by each process that starts.
GRANT SELECT ON holdfast_migrations TO holdfast_worker;

-- Leases, checkpoints and the registry.
GRANT SELECT, INSERT, UPDATE, DELETE ON holdfast_state TO holdfast_worker;

-- History, dead letters and audit; what is past its retention is deleted.
GRANT SELECT, INSERT, DELETE ON holdfast_history TO holdfast_worker;
GRANT SELECT, INSERT, UPDATE, DELETE ON holdfast_dead_letters, holdfast_audit TO holdfast_worker;
GRANT SELECT, INSERT, UPDATE ON holdfast_audit_seals TO holdfast_worker;
GRANT USAGE ON SEQUENCE holdfast_history_id_seq, holdfast_audit_id_seq TO holdfast_worker;

-- The queue of jobs and engines.
GRANT SELECT, INSERT, UPDATE, DELETE ON holdfast_jobs, holdfast_rate_buckets, holdfast_workers TO holdfast_worker;
GRANT SELECT, INSERT, UPDATE ON holdfast_topics, holdfast_periodic TO holdfast_worker;

-- The outbox and its processors.
GRANT SELECT, INSERT, DELETE ON holdfast_outbox TO holdfast_worker;
GRANT SELECT, INSERT, UPDATE, DELETE ON
    holdfast_processor_checkpoints, holdfast_processor_waiting, holdfast_processor_redeliveries,
    holdfast_processor_parked
TO holdfast_worker;
GRANT SELECT, INSERT, UPDATE ON holdfast_outbox_pruned TO holdfast_worker;

-- `holdfast jobs-server`, and the workers' look at what it left.
GRANT SELECT, INSERT, UPDATE, DELETE ON holdfast_job_servers, holdfast_remote_workers TO holdfast_worker;
GRANT SELECT, INSERT ON holdfast_job_keys TO holdfast_worker;
