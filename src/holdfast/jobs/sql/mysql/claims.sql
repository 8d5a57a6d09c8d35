-- The jobs of the batch whose claims are still good: the token guard [FENCE-2]. The hints keep to the primary key in
-- the order of the batch, whatever the statistics say: another plan would lock rows that are not ours.
{{batch.sql}} AS report
STRAIGHT_JOIN holdfast_jobs AS job FORCE INDEX (PRIMARY) ON job.id = report.id
    AND job.attempt = report.attempt AND job.locked_by = :worker
