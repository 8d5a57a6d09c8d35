-- Seconds until the next scheduled job is due. Rows: one, NULL when there is none.
SELECT TIMESTAMPDIFF(MICROSECOND, :now, min(run_at)) / 1e6 FROM holdfast_jobs WHERE status = 'scheduled'
