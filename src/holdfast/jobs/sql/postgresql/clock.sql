-- name: furthest_ahead
-- The furthest of the moments that the queue wrote itself and that lie more than :tolerated seconds ahead, NULL when there is
-- none; and the time. Rows: one.
SELECT CASE WHEN max(moment) > '9999-12-31 00:00:00+00' THEN '9999-12-31 00:00:00+00' ELSE max(moment) END, :now
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
UPDATE holdfast_jobs SET lease_until = :now + lease_seconds * interval '1 second' WHERE {{is_leased_ahead}}

-- name: ready_from_now
-- Let what became ready ahead have become ready now, else it came behind all others for as long. Rows: none.
WITH clock AS MATERIALIZED (SELECT :now AS now)
UPDATE holdfast_jobs SET ready_at = (SELECT now FROM clock) WHERE {{is_ready_ahead}}

-- name: put_off_from_now
-- Let what was put off ahead wait from now for as long as it was to wait then. Rows: none.
UPDATE holdfast_jobs
SET run_at = :now + CASE WHEN isfinite(ready_at) AND isfinite(run_at) THEN run_at - ready_at ELSE interval '0' END,
    ready_at = :now
WHERE {{is_put_off_ahead}}

-- part: is_leased_ahead
-- Whether a lease ends more than :tolerated seconds later than one that is granted now.
status = 'running' AND lease_until > :now + (lease_seconds + :tolerated) * interval '1 second'

-- part: is_ready_ahead
-- Whether a job became ready more than :tolerated seconds from now.
status = 'ready' AND ready_at > :now + :tolerated * interval '1 second'

-- part: is_put_off_ahead
-- While a job is scheduled, ready_at is when that was written. A first run more than 31 days behind that is the user's wish.
status IN ('scheduled', 'suspect') AND ready_at > :now + :tolerated * interval '1 second'
    AND (attempt > 0 OR run_at <= ready_at + interval '31 days')

-- part: is_ended_ahead
-- Whether a job ended more than :tolerated seconds from now.
status IN ('done', 'dead', 'cancelled') AND run_at > :now + :tolerated * interval '1 second'

-- part: is_alive
-- Whether a worker was seen within :seconds. Who was seen ahead was seen by a wrong clock: who lives says so again.
(seen_at BETWEEN :now - :seconds * interval '1 second' AND :now + interval '1 hour')
