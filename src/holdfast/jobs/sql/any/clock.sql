-- name: fill_from_now
-- Let rate buckets of a topic that lie ahead fill up from now: the clock that wrote them was wrong. Rows: none.
UPDATE holdfast_rate_buckets SET refilled_at = :now WHERE topic = :topic AND refilled_at > :now

-- name: ended_now
-- Let what ended ahead have ended now: until then its unique key is taken. Rows: none.
UPDATE holdfast_jobs SET run_at = :now WHERE {{is_ended_ahead}}
