-- What is claimed: operations of open topics, each with the place behind which its jobs are looked for, and how many at
-- most. Limited topics are left to claim_limited.
wanted AS (
    SELECT asked.topic, asked.operation, asked.after_rank, asked.after_ready_at, asked.after_id, asked.place,
        asked.most
    FROM unnest(:topics::text[], :operations::text[], :places::integer[], :after_ranks::integer[],
        :after_ready_ats::timestamptz[], :after_ids::bigint[], :mosts::integer[])
        AS asked (topic, operation, place, after_rank, after_ready_at, after_id, most)
    WHERE NOT EXISTS (
        SELECT FROM holdfast_topics AS known WHERE known.topic = asked.topic AND (known.is_paused OR known.is_limited))
    ORDER BY asked.place
)
