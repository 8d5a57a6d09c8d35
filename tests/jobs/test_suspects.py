"""Who is charged when a worker is lost, decided by the store's statements on every database [SUSPECT-1] [ONCE-1]."""

from __future__ import annotations

from holdfast.jobs.by_hand import cancel_jobs, retry_jobs
from holdfast.jobs.model import Claim, JobStatus, PutBack, Suspect, TopicLimits, WorkerId
from tests.jobs.queues import ANNE, BERT, Queue

LEASE = 30.0


def _anything(topic: str, operation: str) -> bool:
    return True


def _lose(queue: Queue) -> dict[Claim, JobStatus]:
    """Let every lease run out and be looked after."""
    queue.step(LEASE + 1)
    return queue.store.reap()


def _suspect(queue: Queue, worker: WorkerId = BERT) -> Suspect:
    found = queue.store.claim_suspect(worker, _anything)
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
    assert queue.store.claim_suspect(BERT, lambda topic, operation: operation == "old") is None
    assert _suspect(queue).job.id == second
    assert queue.store.claim_suspect(BERT, _anything) is None


def test_suspects_obey_limits_and_hold_nothing_while_they_wait(queue: Queue) -> None:
    """[LIMIT-1]"""
    queue.store.set_limits("email", TopicLimits(max_running=1, max_running_per_key=1))
    suspect = queue.add(limit_key="a").id
    [held] = queue.store.claim_limited(ANNE, "email", ["send"], 10)
    assert held.id == suspect
    _lose(queue)
    queue.add(limit_key="a")
    [other] = queue.store.claim_limited(ANNE, "email", ["send"], 10)
    assert queue.store.claim_suspect(BERT, _anything) is None
    queue.store.put_back(ANNE, [PutBack(other.claim, 60.0)])
    assert _suspect(queue).job.id == suspect
    queue.step(61)
    queue.store.promote()
    assert queue.store.claim_limited(ANNE, "email", ["send"], 10) == []


def test_a_suspect_of_a_paused_topic_waits(queue: Queue) -> None:
    queue.add()
    queue.claim_one()
    _lose(queue)
    queue.store.pause("email", True)
    assert queue.store.claim_suspect(BERT, _anything) is None
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
