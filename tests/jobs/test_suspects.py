"""Who is charged when a worker is lost, decided by the store's statements on every database [SUSPECT-1] [ONCE-1]."""

from __future__ import annotations

import pytest

from holdfast.jobs.model import Claim, JobStatus, PutBack, Success, Suspect, TopicLimits, WorkerId
from holdfast.jobs.operator import cancel_jobs, retry_jobs
from tests.jobs.queues import ANNE, BERT, Queue, next_suspect

LEASE = 30.0


def _lose(queue: Queue) -> dict[Claim, JobStatus]:
    """Let every lease run out and be looked after."""
    queue.step(LEASE + 1)
    return queue.store.reap()


def _suspect(queue: Queue, worker: WorkerId = BERT) -> Suspect:
    found = next_suspect(queue.store, worker)
    assert found is not None
    return found


def test_what_a_lost_worker_held_comes_back_uncharged_and_marked(queue: Queue) -> None:
    """[SUSPECT-1]"""
    ids = [queue.add().id for _ in range(3)]
    claimed = queue.claim()
    assert _lose(queue) == {job.claim: JobStatus.SUSPECT for job in claimed}
    for job_id in ids:
        assert queue.status(job_id) == "suspect"
        assert (queue.column(job_id, "failures"), queue.column(job_id, "suspicions")) == (0, 1)
    assert queue.history() == []
    assert queue.claim() == []
    assert queue.store.next_due().has_suspects


def test_a_suspect_that_takes_its_worker_with_it_is_charged_and_stays_marked(queue: Queue) -> None:
    """[SUSPECT-1] [RETRY-1]"""
    job_id = queue.add(max_attempts=2, retry_base_seconds=0.001, retry_max_seconds=0.001).id
    queue.claim_one()
    _lose(queue)
    for expected in ("suspect", "dead"):
        suspect = _suspect(queue)
        assert suspect.suspicions == 1
        assert queue.store.begin(BERT, suspect.job.claim)
        assert _lose(queue) == {suspect.job.claim: JobStatus(expected)}
        queue.step(1)
    assert queue.column(job_id, "failures") == 2
    assert [letter["error_message"] for letter in queue.dead_letters()] == ["worker lease expired"]


def test_a_suspect_that_had_not_begun_or_was_cleared_is_not_charged(queue: Queue) -> None:
    """[SUSPECT-1]"""
    job_id = queue.add(max_attempts=2).id
    queue.claim_one()
    _lose(queue)
    _suspect(queue)
    _lose(queue)
    suspect = _suspect(queue)
    assert queue.store.begin(BERT, suspect.job.claim)
    assert queue.store.clear(BERT, suspect.job.claim)
    _lose(queue)
    assert (queue.column(job_id, "failures"), queue.column(job_id, "suspicions")) == (0, 3)


def test_a_stale_claim_cannot_begin(queue: Queue) -> None:
    """[FENCE-2]"""
    queue.add()
    job = queue.claim_one()
    assert not queue.store.begin(BERT, job.claim)
    _lose(queue)
    assert not queue.store.begin(ANNE, job.claim)


def test_what_may_run_once_is_buried_when_it_had_begun_and_given_back_when_not(queue: Queue) -> None:
    """[ONCE-1]"""
    begun, waiting = queue.add(max_attempts=1).id, queue.add(max_attempts=1).id
    first, _ = queue.claim()
    assert first.id == begun
    assert queue.store.begin(ANNE, first.claim)
    _lose(queue)
    assert queue.status(begun) == "dead"
    assert (queue.status(waiting), queue.column(waiting, "suspicions")) == ("ready", 0)


def test_what_may_run_once_is_buried_when_an_older_worker_held_it(queue: Queue) -> None:
    """[ONCE-1] A release before this one does not say what has begun."""
    job_id = queue.add(max_attempts=1).id
    queue.claim_one()
    with queue.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE holdfast_jobs SET begun_attempt = 0")
    _lose(queue)
    assert queue.status(job_id) == "dead"


def test_the_longest_waiting_suspect_goes_first_and_only_where_its_handler_is(queue: Queue) -> None:
    first, second = queue.add(operation="old").id, queue.add().id
    queue.claim()
    _lose(queue)
    assert _suspect(queue).job.id == first
    assert next_suspect(queue.store, BERT, lambda topic, operation: operation == "old") is None
    assert _suspect(queue).job.id == second
    assert next_suspect(queue.store, BERT) is None


def test_suspects_obey_limits_and_hold_nothing_while_they_wait(queue: Queue) -> None:
    """[LIMIT-1]"""
    queue.store.set_limits("email", TopicLimits(max_running=1, max_running_per_key=1))
    suspect = queue.add(limit_key="a").id
    [held] = queue.store.claim_limited(ANNE, "email", ["send"], 10)
    assert held.id == suspect
    _lose(queue)
    queue.add(limit_key="a")
    [other] = queue.store.claim_limited(ANNE, "email", ["send"], 10)
    assert next_suspect(queue.store, BERT) is None
    queue.store.put_back(ANNE, [PutBack(other.claim, 60.0)])
    assert _suspect(queue).job.id == suspect
    queue.step(61)
    queue.store.promote()
    assert queue.store.claim_limited(ANNE, "email", ["send"], 10) == []


AT_ONCE, PER_TIME = (), (4.0, 4.0, 4.0)  # how long it takes until there is room again
LIMITS = [
    (TopicLimits(max_running=1), None, None, AT_ONCE),
    (TopicLimits(max_running_per_key=1), "a", "a", AT_ONCE),
    (TopicLimits(max_running=2, max_running_per_key=2), "a", "b", AT_ONCE),
    (TopicLimits(rate_count=1, rate_seconds=10.0), None, None, PER_TIME),
    (TopicLimits(rate_count_per_key=1, rate_seconds_per_key=10.0), "a", "a", PER_TIME),
]


@pytest.mark.parametrize(("limits", "key", "other_key", "seconds"), LIMITS)
def test_the_next_place_is_kept_for_a_suspect_that_somebody_is_ready_to_test(
    queue: Queue, limits: TopicLimits, key: str | None, other_key: str | None, seconds: tuple[float, ...]
) -> None:
    """[SUSPECT-1] [LIMIT-1] Also by workers that cannot run it, or have no time for it."""
    queue.store.set_limits("email", limits)
    suspect = queue.add(limit_key=key).id
    queue.claim_limited(1)
    _lose(queue)
    for _ in range(5):
        queue.add(limit_key=other_key)
    held = queue.claim_limited()
    assert next_suspect(queue.store, BERT) is None
    queue.store.complete(ANNE, [Success(held[0].claim, 1)])
    for pause in seconds:
        assert next_suspect(queue.store, BERT) is None
        queue.step(pause)
    assert queue.claim_limited() == []
    assert _suspect(queue).job.id == suspect


def test_a_place_is_kept_no_longer_than_somebody_is_ready_to_test(queue: Queue) -> None:
    """[LIMIT-1] A suspect holds no limit hostage."""
    queue.store.set_limits("email", TopicLimits(max_running=1))
    suspect = queue.add().id
    queue.claim_limited(1)
    _lose(queue)
    queue.add()
    queue.add()
    [held] = queue.claim_limited()
    assert next_suspect(queue.store, BERT) is None
    queue.store.complete(ANNE, [Success(held.claim, 1)])
    assert queue.claim_limited() == []
    queue.step(6)
    assert len(queue.claim_limited()) == 1
    assert queue.status(suspect) == "suspect"


def test_suspects_keep_no_place_from_each_other(queue: Queue) -> None:
    queue.store.set_limits("email", TopicLimits(max_running=2))
    ids = {queue.add(operation=name).id for name in ("send", "print")}
    assert len(queue.claim_limited()) == 2
    _lose(queue)
    queue.add()
    queue.add()
    held = queue.claim_limited()
    assert next_suspect(queue.store, BERT) is None
    queue.store.complete(ANNE, [Success(job.claim, 1) for job in held])
    first, second = _suspect(queue, ANNE), _suspect(queue, BERT)
    assert {first.job.id, second.job.id} == ids


def test_a_suspect_of_a_paused_topic_waits(queue: Queue) -> None:
    queue.add()
    queue.claim_one()
    _lose(queue)
    queue.store.pause("email", True)
    assert next_suspect(queue.store, BERT) is None
    queue.store.pause("email", False)
    _suspect(queue)


def test_a_suspect_keeps_its_unique_key_as_a_job_that_waits_for_a_retry(queue: Queue) -> None:
    first = queue.add(unique_key="only")
    queue.claim_one()
    _lose(queue)
    assert queue.add(unique_key="only").id == first.id


def test_a_suspect_that_is_given_back_stays_one(queue: Queue) -> None:
    job_id = queue.add().id
    queue.claim_one()
    _lose(queue)
    queue.store.put_back(BERT, [PutBack(_suspect(queue).job.claim)])
    assert queue.status(job_id) == "suspect"


def test_suspects_can_be_cancelled_and_retried(queue: Queue) -> None:
    cancelled, retried = queue.add().id, queue.add().id
    queue.claim()
    _lose(queue)
    assert cancel_jobs(queue.store, [cancelled], "enough", "anne") == {cancelled: JobStatus.CANCELLED}
    retry_jobs(queue.store, [retried], "anne")
    assert (queue.status(retried), queue.column(retried, "suspicions")) == ("ready", 0)


def test_a_cancelled_job_whose_worker_was_lost_ends_cancelled(queue: Queue) -> None:
    job_id = queue.add().id
    queue.claim_one()
    queue.store.cancel([job_id], "enough")
    _lose(queue)
    assert queue.status(job_id) == "cancelled"


def test_an_engines_message_is_a_suspect_like_any_job_and_its_history_is_the_engines_own(queue: Queue) -> None:
    job_id = queue.add("engine.mail", max_attempts=None).id
    queue.claim(topics=("engine.mail",))
    _lose(queue)
    assert (queue.status(job_id), queue.column(job_id, "failures"), queue.column(job_id, "suspicions")) == (
        "suspect",
        0,
        1,
    )
    assert queue.rows("SELECT * FROM holdfast_history") == []


def test_a_suspect_that_waits_for_its_retry_is_due_like_a_scheduled_job(queue: Queue) -> None:
    queue.add(max_attempts=3, retry_base_seconds=60.0, retry_max_seconds=60.0)
    held = queue.claim_one()
    assert queue.store.begin(ANNE, held.claim)
    assert _lose(queue) == {held.claim: JobStatus.SUSPECT}
    due = queue.store.next_due()
    assert (due.seconds is not None and 0 < due.seconds <= 75.0, due.has_suspects) == (True, False)
    queue.step(76)
    assert queue.store.next_due() == (None, True)
