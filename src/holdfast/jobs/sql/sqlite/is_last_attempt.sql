-- Whether one more failure is one too many [RETRY-1].
job.max_attempts IS NOT NULL AND job.failures + 1 >= job.max_attempts
