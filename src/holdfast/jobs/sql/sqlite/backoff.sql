-- The pause before the next try: it doubles with every failure, up to a maximum, give or take a quarter [RETRY-1].
min(job.retry_max_seconds, job.retry_base_seconds * (1 << min(job.failures, 60)))
        * (0.75 + abs(random() % 1000000) / 2000000.0)
