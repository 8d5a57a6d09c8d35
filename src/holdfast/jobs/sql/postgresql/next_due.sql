-- Seconds until the next scheduled job is due. Rows: one, NULL when there is none.
SELECT extract(epoch FROM min(run_at) - :now)::double precision FROM holdfast_jobs WHERE status = 'scheduled'
