-- The key of a dead letter: the job, and when.
CONCAT('job-', job.id, '-', DATE_FORMAT(job.last_failed_at, '%Y%m%dT%H%i%s%fZ'))
