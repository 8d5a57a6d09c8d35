"""A job with ``max_attempts=1`` never begins a second time, whoever gives it back and why [ONCE-1]."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.core.errors import Ambiguous, Unavailable
from holdfast.jobs.context import JobContext
from holdfast.jobs.model import Claim, JobStatus, PutBack, WorkerId
from holdfast.jobs.outcomes import Snooze
from holdfast.jobs.settings import WorkerSettings
from holdfast.jobs.stores.base import SqlJobStore
from tests.jobs.queues import ANNE, Queue, open_queue
from tests.jobs.workers import QUICK, Work

IMPATIENT = WorkerSettings(concurrency=4, beat_seconds=0.2, watchdog_seconds=0.2, poll_seconds=0.05, drain_seconds=0.2)


def test_what_is_given_back_after_it_had_begun_is_a_dead_letter(queue: Queue) -> None:
    """[ONCE-1]"""
    begun, waiting = queue.add(max_attempts=1).id, queue.add(max_attempts=1).id
    first, second = queue.claim()
    assert queue.store.begin(ANNE, first.claim)
    reports = [PutBack(first.claim, 0.0, "the worker stopped"), PutBack(second.claim)]
    assert queue.store.put_back(ANNE, reports) == {first.claim: JobStatus.DEAD, second.claim: None}
    assert (queue.status(begun), queue.status(waiting)) == ("dead", "ready")
    assert [letter["error_message"] for letter in queue.dead_letters()] == ["the worker stopped"]
    assert [(entry["status"], entry["error"]) for entry in queue.history()] == [("Failed", "the worker stopped")]
    assert queue.store.put_back(ANNE, reports) == {}


def test_jobs_that_may_run_again_are_given_back(queue: Queue) -> None:
    ids = [queue.add(max_attempts=most).id for most in (2, None)]
    for job in queue.claim():
        assert queue.store.begin(ANNE, job.claim)
        assert queue.store.put_back(ANNE, [PutBack(job.claim)]) == {job.claim: None}
    assert [queue.status(job_id) for job_id in ids] == ["ready", "ready"]


def test_the_wish_to_cancel_comes_first(queue: Queue) -> None:
    job_id = queue.add(max_attempts=1).id
    job = queue.claim_one()
    assert queue.store.begin(ANNE, job.claim)
    queue.store.cancel([job_id], "enough")
    assert queue.store.put_back(ANNE, [PutBack(job.claim)]) == {job.claim: None}
    assert (queue.status(job_id), queue.dead_letters()) == ("cancelled", [])


def test_what_surely_was_not_called_is_given_back_whatever_was_recorded(queue: Queue) -> None:
    """[ONCE-1]"""
    job_id = queue.add(max_attempts=1).id
    job = queue.claim_one()
    assert queue.store.begin(ANNE, job.claim)
    assert queue.store.put_back(ANNE, [PutBack(job.claim, is_unbegun=True)]) == {job.claim: None}
    assert queue.status(job_id) == "ready"


class Calls:
    """A handler, ``def`` or ``async def``, that does not end when it is called first."""

    def __init__(self, is_async: bool) -> None:
        self.count = 0
        self.begun = threading.Event()
        self.function: Callable[..., Any] = self._linger_async if is_async else self._linger

    def _linger(self, context: JobContext) -> None:
        self.count += 1
        self.begun.set()
        if self.count == 1:
            context.lease_lost.wait(30)
            context.raise_if_stopped()

    async def _linger_async(self, context: JobContext) -> None:
        self.count += 1
        self.begun.set()
        if self.count == 1:
            await asyncio.sleep(60)


@pytest.fixture
def alone(sqlite_url: str) -> Iterator[Queue]:
    """One database is enough for what a worker does: the statements are tested above."""
    with open_queue(sqlite_url) as opened:
        yield opened


@pytest.fixture(params=["def", "async def"])
def calls(request: pytest.FixtureRequest) -> Calls:
    return Calls(request.param == "async def")


def _run_again(alone: Queue, calls: Calls) -> None:
    """Let another worker do what there is to do."""
    work = Work(alone)
    work.job(calls.function, max_attempts=1)
    with work.running():
        work.until_empty()


def test_a_handler_that_outlives_the_drain_is_not_called_again(alone: Queue, calls: Calls) -> None:
    """[ONCE-1]"""
    work = Work(alone, IMPATIENT)
    job_id = work.job(calls.function, max_attempts=1).enqueue().id
    with work.running(drains=False):
        assert calls.begun.wait(10)
    _run_again(alone, calls)
    assert (calls.count, alone.status(job_id)) == (1, "dead")
    [letter] = alone.dead_letters()
    assert letter["error_message"] == "the worker stopped before the handler ended"


def test_a_handler_that_leaves_because_its_lease_seemed_lost_is_not_called_again(
    alone: Queue, calls: Calls, caplog: pytest.LogCaptureFixture
) -> None:
    """[ONCE-1]"""
    work = Work(alone)
    job_id = work.job(calls.function, max_attempts=1).enqueue().id
    with work.running() as worker:
        assert calls.begun.wait(10)
        for running in worker._in_flight.all():
            running.lose(is_certain=False)
        work.until_empty()
    assert (calls.count, alone.status(job_id)) == (1, "dead")
    assert f"Job {job_id} failed at attempt 1, now dead: it was given back after it had begun" in caplog.text


def test_a_handler_may_snooze(alone: Queue) -> None:
    """It is the handler's own wish to be called again."""
    called = []

    def snooze(context: JobContext) -> None:
        called.append(context.attempt)
        if len(called) == 1:
            raise Snooze(in_seconds=0.01)

    work = Work(alone)
    work.job(snooze, max_attempts=1).enqueue()
    with work.running():
        work.until_empty()
    assert (called, alone.dead_letters()) == ([1, 2], [])


@pytest.mark.parametrize("error", [Ambiguous, Unavailable])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_begin_that_is_not_answered_gives_the_job_back(
    alone: Queue, monkeypatch: pytest.MonkeyPatch, error: type[Exception], is_async: bool
) -> None:
    """[ONCE-1] The handler was not called, although the begin may have been recorded."""
    called: list[int] = []
    failures = [error("planted")]

    real = SqlJobStore.begin

    def begin(store: SqlJobStore, worker: WorkerId, claim: Claim) -> bool:
        has_begun = real(store, worker, claim)
        if failures:
            raise failures.pop()
        return has_begun

    monkeypatch.setattr(SqlJobStore, "begin", begin)

    def note() -> None:
        called.append(1)

    async def note_async() -> None:
        called.append(1)

    work = Work(alone, QUICK)
    work.job(note_async if is_async else note, max_attempts=1).enqueue()
    with work.running():
        work.until_empty()
    assert (called, alone.dead_letters(), failures) == ([1], [], [])


def test_a_coroutine_that_is_cancelled_while_its_begin_is_recorded_gives_the_job_back(
    alone: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[ONCE-1]"""
    asked, answer = threading.Event(), threading.Event()
    called: list[int] = []

    real = SqlJobStore.begin

    def begin(store: SqlJobStore, worker: WorkerId, claim: Claim) -> bool:
        asked.set()
        answer.wait(10)
        return real(store, worker, claim)

    monkeypatch.setattr(SqlJobStore, "begin", begin)

    async def note() -> None:
        called.append(1)

    work = Work(alone)
    work.job(note, max_attempts=1).enqueue()
    with work.running() as worker:
        assert asked.wait(10)
        for running in worker._in_flight.all():
            running.lose(is_certain=False)
        answer.set()
        work.until_empty()
    assert (called, alone.dead_letters()) == ([1], [])
