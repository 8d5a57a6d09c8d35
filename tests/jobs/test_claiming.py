"""One topic's trouble never delays another: each source of claims has a back-off of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

import pytest

from holdfast.core.errors import Unavailable
from holdfast.jobs.claiming import Claiming
from holdfast.jobs.model import Attempt, ClaimedJob, JobId, Wanted, WorkerId
from holdfast.jobs.outcomes import Snooze
from holdfast.jobs.settings import WorkerSettings, limits_of
from holdfast.jobs.telemetry import WorkerTelemetry
from tests.clocks import SteppedClock
from tests.components.processes import wait_until
from tests.jobs.queues import Queue
from tests.jobs.workers import Work

WORKER = WorkerId("w")
WANTED = {"plain": ["send"], "good": ["send"], "bad": ["send"]}


def job(topic: str) -> ClaimedJob:
    nothing = dict.fromkeys(ClaimedJob._fields)
    return ClaimedJob(**{**nothing, "id": JobId(1), "attempt": Attempt(1), "topic": topic})  # type: ignore[arg-type] # the rest does not matter


class TroubledStore:
    """A store of which single claims fail."""

    def __init__(self) -> None:
        self.trouble: dict[str, Callable[[], Exception]] = {}
        self.asked: list[str] = []

    def _answer(self, source: str) -> list[ClaimedJob]:
        self.asked.append(source)
        if source in self.trouble:
            raise self.trouble[source]()
        return [job(source)]

    def claim(self, worker: WorkerId, wanted: Wanted, capacity: int, mosts: Mapping[str, int]) -> list[ClaimedJob]:
        return self._answer("plain")

    def claim_limited(self, worker: WorkerId, topic: str, operations: Sequence[str], capacity: int) -> list[ClaimedJob]:
        return self._answer(topic)

    def rate_opens_in(self, topic: str) -> float | None:
        return None

    def limited_topics(self) -> list[str]:
        if "topics" in self.trouble:
            raise self.trouble["topics"]()
        return ["good", "bad"]


class Bench:
    """Claims of a troubled store, on a clock that the test steps."""

    def __init__(self) -> None:
        self.store = TroubledStore()
        self.clock = SteppedClock()
        self.claiming = Claiming(self.store, WorkerTelemetry(WORKER, None), self.clock)  # type: ignore[arg-type] # what it needs

    def claim(self) -> list[str]:
        self.store.asked.clear()
        return sorted(found.topic for jobs in self.claiming.claim(WORKER, WANTED, 30) for found in jobs)


@pytest.mark.parametrize("error", [KeyError("limit"), Unavailable("busy")])
@pytest.mark.parametrize("source", ["plain", "good", "bad"])
def test_the_others_are_asked_each_time(source: str, error: Exception) -> None:
    bench = Bench()
    bench.store.trouble[source] = lambda: error
    others = sorted({"plain", "good", "bad"} - {source})
    for _ in range(50):
        assert bench.claim() == others
        bench.clock.advance(0.01)


def test_what_fails_is_asked_less_and_less_and_at_once_when_it_works() -> None:
    bench = Bench()
    bench.store.trouble["bad"] = lambda: KeyError("limit")
    asked = 0
    for _ in range(1000):
        bench.claim()
        asked += bench.store.asked.count("bad")
        assert 0 <= bench.claiming.retry_in_seconds() <= 5 * 1.25
        bench.clock.advance(0.1)
    assert 15 < asked < 40
    del bench.store.trouble["bad"]
    bench.clock.advance(bench.claiming.retry_in_seconds())
    assert bench.claim() == ["bad", "good", "plain"]
    assert bench.claiming.retry_in_seconds() == float("inf")


def test_it_is_told_once_that_it_fails_and_once_that_it_works(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.store.trouble["bad"] = lambda: Unavailable("busy")
    with caplog.at_level(logging.INFO, "holdfast.jobs"):
        for _ in range(20):
            bench.claim()
            bench.clock.advance(1)
        bench.store.trouble.clear()
        for _ in range(20):
            bench.claim()
            bench.clock.advance(1)
    failing, working = [record.getMessage() for record in caplog.records]
    assert failing.startswith("Claiming jobs of the limited topic 'bad' did not work and is tried again: Unavailable")
    assert working == "Claiming jobs of the limited topic 'bad' works again"


def test_limited_topics_are_remembered_while_they_cannot_be_read() -> None:
    bench = Bench()
    assert bench.claim() == ["bad", "good", "plain"]
    bench.store.trouble["topics"] = lambda: Unavailable("busy")
    bench.clock.advance(10)
    assert bench.claim() == ["bad", "good", "plain"]


def test_a_worker_runs_the_other_topics_while_one_fails(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each job is added when the one before it has run, so that a pause for all would be paid again and again."""
    work = Work(queue)
    ran: list[tuple[str, int]] = []
    jobs = {
        topic: work.job(lambda n, topic=topic: ran.append((topic, n)), topic=topic)
        for topic in ("bad", "good", "plain")
    }
    for topic in ("bad", "good"):
        queue.store.set_limits(topic, limits_of(concurrency=2))
    whole = type(queue.store).claim_limited
    failed: list[str] = []

    def troubled(store: object, worker: WorkerId, topic: str, operations: Sequence[str], capacity: int) -> object:
        if topic == "bad" and len(failed) < 5:
            failed.append(topic)
            raise KeyError("limit")
        return whole(queue.store, worker, topic, operations, capacity)

    monkeypatch.setattr(type(queue.store), "claim_limited", troubled)
    jobs["bad"].enqueue(n=0)
    with work.running():
        wait_until(lambda: len(failed) >= 4, "the trouble")
        for n in range(12):
            for topic in ("good", "plain"):
                jobs[topic].enqueue(n=n)
                wait_until(lambda topic=topic, n=n: (topic, n) in ran, f"{topic} {n}", 10)  # type: ignore[misc] # mypy sees no default
        wait_until(lambda: ("bad", 0) in ran, "the failing topic, once it works again", 60)


def test_jobs_that_snooze_let_later_ones_start(queue: Queue) -> None:
    work = Work(queue, WorkerSettings(concurrency=4, poll_seconds=0.05))
    ran: list[int] = []

    def wait() -> None:
        raise Snooze(in_seconds=0.2)

    snoozing = work.job(wait)
    later = work.job(lambda n: ran.append(n))
    snoozing.enqueue_many([{}] * 80)
    with work.running():
        attempts = "SELECT min(attempt) AS least FROM holdfast_jobs WHERE operation = 'wait'"
        wait_until(lambda: queue.rows(attempts)[0]["least"] >= 2, "all to snooze again and again")
        later.enqueue_many([{"n": n} for n in range(10)])
        wait_until(lambda: len(ran) == 10, "the later ones", 15)
    assert sorted(ran) == list(range(10))


def test_a_snooze_of_no_time_still_lets_others_start(queue: Queue) -> None:
    work = Work(queue, WorkerSettings(concurrency=1, ahead=0, poll_seconds=0.05))
    ran: list[int] = []

    def spin() -> None:
        raise Snooze(in_seconds=0)

    work.job(spin).enqueue()
    later = work.job(lambda n: ran.append(n))
    with work.running():
        wait_until(lambda: queue.rows("SELECT attempt FROM holdfast_jobs")[0]["attempt"] >= 3, "it to come again")
        later.enqueue(n=1)
        wait_until(lambda: ran == [1], "the later one")
