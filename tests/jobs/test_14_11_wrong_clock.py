"""What the queue wrote while its database's clock was ten years ahead for one tick does not hold work up."""

from __future__ import annotations

from datetime import timedelta

import pytest

from holdfast.jobs.model import Failure, NewJob, PutBack, Success, WorkerId
from holdfast.jobs.settings import limits_of
from holdfast.jobs.store import job_store
from holdfast.jobs.wrong_clock import QueueMoments
from tests.clocks import SteppedClock
from tests.jobs.queues import ANNE, BERT, Queue

TEN_YEARS = 3652 * 86_400.0


class Tick:
    """A queue whose clock is wrong for as long as the block runs; ``mend`` is what every worker process does."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.clock = SteppedClock()
        self.moments = QueueMoments(queue.store, self.clock)

    def __enter__(self) -> None:
        self.queue.step(TEN_YEARS)

    def __exit__(self, *error: object) -> None:
        self.queue.step(-TEN_YEARS)

    def mend(self) -> None:
        assert self.moments.look() == 60.0, "the present clock is not believed at once"
        self.clock.advance(60)
        assert self.moments.look() == 300.0
        assert self.queue.store.furthest_ahead()[0] is None


@pytest.fixture
def tick(queue: Queue) -> Tick:
    return Tick(queue)


@pytest.mark.parametrize("keys", [(None, None), ("north", "south")], ids=["of a topic", "of keys"])
def test_14_11_a_rate_goes_on_at_once(queue: Queue, tick: Tick, keys: tuple[str | None, str | None]) -> None:
    key, other = keys
    limits = limits_of(rate=(2, 10.0)) if key is None else limits_of(rate_per_key=(2, 10.0))
    queue.store.set_limits("email", limits)
    for _ in range(6):
        queue.add(limit_key=key)
    with tick:
        assert len(queue.claim_limited()) == 2
    assert len(queue.claim_limited()) == 0, "two have just started"
    queue.step(5.1)
    assert len(queue.claim_limited()) == 1
    assert queue.store.rate_opens_in("email") == pytest.approx(5.0, abs=1.0)
    queue.step(10.1)
    assert len(queue.claim_limited()) == 2
    if other is not None:
        queue.add(limit_key=other)
        queue.step(10.1)
        assert {job.limit_key for job in queue.claim_limited()} == {key, other}


@pytest.mark.parametrize("way", ["a retry", "a snooze"])
def test_14_11_what_was_put_off_waits_no_longer_than_it_was_to(queue: Queue, tick: Tick, way: str) -> None:
    job_id = queue.add(max_attempts=3).id
    with tick:
        claim = queue.claim_one().claim
        if way == "a retry":
            queue.store.fail(ANNE, [Failure(claim, 1, "no answer", retry_seconds=20.0)])
        else:
            queue.store.put_back(ANNE, [PutBack(claim, 20.0)])
    tick.mend()
    assert queue.store.next_due().seconds == pytest.approx(20.0, abs=5.0)
    queue.step(21)
    queue.store.promote()
    assert [job.id for job in queue.claim()] == [job_id]


def test_14_11_a_lost_worker_is_reaped(queue: Queue, tick: Tick) -> None:
    lost, kept = queue.add().id, queue.add().id
    with tick:
        first, second = queue.claim()
        queue.store.begin(ANNE, first.claim)
    queue.store.heartbeat(ANNE, [second.claim])  # its worker lives
    tick.mend()
    assert queue.store.reap() == {}, "a worker that lives has its whole lease from now"
    queue.step(31)
    queue.store.heartbeat(ANNE, [second.claim])
    assert [claim.id for claim in queue.store.reap()] == [lost]
    assert queue.status(kept) == "running"


def test_14_11_a_suspect_is_tested(queue: Queue, tick: Tick) -> None:
    job_id = queue.add().id
    with tick:
        job = queue.claim_one()
        queue.store.begin(ANNE, job.claim)
        queue.step(31)
        assert len(queue.store.reap()) == 1
        queue.step(-31)
    tick.mend()
    queue.step(5)
    assert queue.claim_suspect(BERT).id == job_id


def test_14_11_a_key_is_free_again(queue: Queue, tick: Tick) -> None:
    with tick:
        first = queue.add(unique_key="order-7", unique_seconds=60.0)
        queue.store.complete(ANNE, [Success(queue.claim_one().claim, 1, keeps_key=True)])
    tick.mend()
    assert not queue.add(unique_key="order-7", unique_seconds=60.0).is_new, "its window counts from now"
    queue.step(61)
    assert queue.add(unique_key="order-7", unique_seconds=60.0).id != first.id


def test_14_11_what_became_ready_then_comes_before_what_became_ready_since(queue: Queue, tick: Tick) -> None:
    with tick:
        first = queue.add().id
    tick.mend()
    queue.step(1)
    second = queue.add().id
    assert [queue.claim_one().id, queue.claim_one().id] == [first, second]


def test_14_11_what_users_have_chosen_stays(queue: Queue, tick: Tick) -> None:
    now = queue.store.now()
    chosen = [now + timedelta(days=days) for days in (3, 3700, 5000)]
    ids = [queue.add(run_at=chosen[0]).id, queue.add(run_at=chosen[1]).id]
    with tick:
        ids.append(queue.add(run_at=chosen[2]).id)
        delayed = queue.add(run_at=queue.store.now() + timedelta(seconds=30)).id  # as delay_seconds=30 does
    tick.mend()
    due = {job_id: queue.column(job_id, "run_at") for job_id in (*ids, delayed)}
    if queue.engine.dialect.name == "postgresql":
        due = {job_id: moment.astimezone(now.tzinfo) for job_id, moment in due.items()}
    assert [due[job_id] for job_id in ids] == chosen
    assert due[delayed] - now < timedelta(minutes=1)


def test_14_11_a_worker_seen_then_is_not_taken_for_one_that_lives(queue: Queue, tick: Tick) -> None:
    store = job_store(queue.engine, ahead_seconds=lambda: queue.ahead_seconds, application="shop")
    with tick:
        store.announce(WorkerId("anne"), {"email": ["send"]})
        store.server_seen(WorkerId("server"))
    assert store.live_applications() == set()
    queue.add()
    assert store.stats()[0].without_worker == {"send": 1}
    store.announce(WorkerId("bert"), {"email": ["send"]})
    store.forget_servers()
    assert [row["id"] for row in queue.rows("SELECT id FROM holdfast_workers")] == ["bert"]
    assert queue.rows("SELECT name FROM holdfast_job_servers") == []


def test_14_11_a_sound_clock_finds_nothing(queue: Queue, tick: Tick) -> None:
    queue.store.enqueue_many([NewJob(topic="email", operation="send", payload="{}") for _ in range(3)])
    queue.add(lease_seconds=7 * 86_400.0)
    first, *_ = queue.claim(3)
    queue.store.put_back(ANNE, [PutBack(first.claim, 50 * 366 * 86_400.0)])
    assert tick.moments.look() == 300.0
