-- Claim up to :capacity ready jobs of one topic and priority behind an id up to which they were claimed just now: the
-- index is not read through what was claimed before and not vacuumed yet. The claim is the lease grant [CLAIM-1].
-- Rows: the claimed jobs.
WITH picked AS MATERIALIZED (
    SELECT job.id
    FROM holdfast_jobs AS job
    WHERE job.topic = :topic AND job.status = 'ready' AND job.limit_key IS NULL
      AND job.priority = :priority AND job.id > :behind
      AND NOT EXISTS (
          SELECT FROM holdfast_topics AS known WHERE known.topic = :topic AND (known.is_paused OR known.is_limited))
    ORDER BY job.priority DESC, job.id
    LIMIT :capacity
    FOR UPDATE SKIP LOCKED
)
{{grant.sql}}
