-- name: furthest_ahead
-- The furthest of the moments that the queue wrote itself and that lie more than :tolerated seconds ahead, NULL when there is
-- none; and the time. Rows: one.
SELECT max(moment), :now
FROM (
    SELECT max(lease_until) AS moment FROM holdfast_jobs WHERE {{is_leased_ahead}}
    UNION ALL
    SELECT max(ready_at) FROM holdfast_jobs WHERE {{is_ready_ahead}}
    UNION ALL
    SELECT max(ready_at) FROM holdfast_jobs WHERE {{is_put_off_ahead}}
    UNION ALL
    SELECT max(run_at) FROM holdfast_jobs WHERE {{is_ended_ahead}}
) AS ahead

-- name: end_leases_soon
-- Let leases that end ahead last for their whole length from now: a worker that lives extends them, others are reaped. Rows: none.
UPDATE holdfast_jobs SET lease_until = :now + lease_seconds seconds WHERE {{is_leased_ahead}}

-- name: ready_from_now
-- Let what became ready ahead have become ready now, else it came behind all others for as long. Rows: none.
UPDATE holdfast_jobs SET ready_at = :now WHERE {{is_ready_ahead}}

-- name: put_off_from_now
-- Let what was put off ahead wait from now for as long as it was to wait then. Rows: none.
-- Assignments are made from left to right: the first one sees the old ready_at.
UPDATE holdfast_jobs
SET run_at = :now + INTERVAL TIMESTAMPDIFF(MICROSECOND, ready_at, run_at) MICROSECOND, ready_at = :now
WHERE {{is_put_off_ahead}}

-- part: is_leased_ahead
-- Whether a lease ends more than :tolerated seconds later than one that is granted now. Only running jobs have a lease.
TIMESTAMPDIFF(MICROSECOND, :now, lease_until) / 1e6 > lease_seconds + :tolerated

-- part: is_ready_ahead
-- Whether a job became ready more than :tolerated seconds from now.
status = 'ready' AND ready_at > :now + INTERVAL :tolerated SECOND

-- part: is_put_off_ahead
-- While a job is scheduled, ready_at is when that was written. A first run more than 31 days behind that is the user's wish.
status IN ('scheduled', 'suspect') AND ready_at > :now + INTERVAL :tolerated SECOND
    AND (attempt > 0 OR run_at <= ready_at + INTERVAL 31 DAY)

-- part: is_ended_ahead
-- Whether a job ended more than :tolerated seconds from now.
status IN ('done', 'dead', 'cancelled') AND run_at > :now + INTERVAL :tolerated SECOND

-- part: is_alive
-- Whether a worker was seen within :seconds. Who was seen ahead was seen by a wrong clock: who lives says so again.
(TIMESTAMPDIFF(MICROSECOND, seen_at, :now) / 1e6 BETWEEN -3600 AND :seconds)
