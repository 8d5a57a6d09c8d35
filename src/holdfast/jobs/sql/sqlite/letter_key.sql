-- The key of a dead letter: the job, and when. This clock counts milliseconds, so the attempt fills the last three
-- digits: a job that is retried by hand and dies again within one has a second key.
'job-' || job.id || '-' || replace(strftime('%Y%m%dT%H%M%f', job.last_failed_at), '.', '')
        || printf('%03d', job.attempt % 1000) || 'Z'
