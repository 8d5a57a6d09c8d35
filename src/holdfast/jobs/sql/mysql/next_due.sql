-- Seconds until the next scheduled job is due, NULL when there is none, and whether a suspect waits. Rows: one.
SELECT (SELECT TIMESTAMPDIFF(MICROSECOND, :now, min(run_at)) / 1e6 FROM holdfast_jobs WHERE status = 'scheduled'),
    EXISTS (SELECT 1 FROM holdfast_jobs WHERE status = 'suspect' AND run_at <= :now)
