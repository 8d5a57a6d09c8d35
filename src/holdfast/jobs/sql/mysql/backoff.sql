-- The pause before the next try: it doubles with every failure, up to a maximum, give or take a quarter [RETRY-1].
LEAST(job.retry_max_seconds, job.retry_base_seconds * POW(2, LEAST(job.failures, 60))) * (0.75 + RAND() * 0.5)
