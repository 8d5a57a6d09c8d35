-- The jobs of the batch whose claims are still good: the token guard [FENCE-2].
FROM {{batch.sql}} AS report
CROSS JOIN holdfast_jobs AS job ON job.id = report.id
    AND job.attempt = report.attempt AND job.locked_by = :worker
