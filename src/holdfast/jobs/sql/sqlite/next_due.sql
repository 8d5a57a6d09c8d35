-- Seconds until the next scheduled job is due. Rows: one, NULL when there is none.
SELECT (julianday(min(run_at)) - julianday(:now)) * 86400.0 FROM holdfast_jobs WHERE status = 'scheduled'
