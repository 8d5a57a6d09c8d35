-- The jobs of the batch, whoever runs them.
FROM {{batch.sql}} AS report
CROSS JOIN holdfast_jobs AS job ON job.id = report.id
