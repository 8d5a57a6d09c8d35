-- Claim up to :capacity ready jobs of one operation. The claim is the lease grant [CLAIM-1]. Rows: the claimed jobs.
-- Limited topics are left to claim_limited.
SELECT {{claimed_columns.sql}}
FROM holdfast_jobs AS job
WHERE job.topic = :topic AND job.operation = :operation AND job.status = 'ready' AND job.limit_key IS NULL
    AND NOT EXISTS (SELECT 1 FROM holdfast_topics AS known
        WHERE known.topic = :topic AND (known.is_paused OR known.is_limited))
ORDER BY job.priority DESC, COALESCE(job.ready_at, job.created_at), job.id
LIMIT :capacity;
{{grant.sql}}
