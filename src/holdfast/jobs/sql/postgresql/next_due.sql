-- Seconds until the next scheduled job is due, NULL when there is none, and whether a suspect waits. Rows: one.
SELECT (SELECT extract(epoch FROM min(run_at) - :now)::double precision FROM holdfast_jobs WHERE status = 'scheduled'),
    EXISTS (SELECT FROM holdfast_jobs WHERE status = 'suspect' AND run_at <= :now)
