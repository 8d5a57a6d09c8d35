-- Seconds until the next scheduled job is due, NULL when there is none, and whether a suspect waits. Rows: one.
SELECT (SELECT (julianday(min(run_at)) - julianday(:now)) * 86400.0 FROM holdfast_jobs WHERE status = 'scheduled'),
    EXISTS (SELECT 1 FROM holdfast_jobs WHERE status = 'suspect' AND run_at <= :now)
