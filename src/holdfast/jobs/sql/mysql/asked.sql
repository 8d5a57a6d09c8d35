-- The jobs of the batch, whoever runs them.
{{batch.sql}} AS report
STRAIGHT_JOIN holdfast_jobs AS job FORCE INDEX (PRIMARY) ON job.id = report.id
