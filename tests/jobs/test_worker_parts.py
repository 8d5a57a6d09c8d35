"""A worker watches its own parts, and handlers that do not end: what cannot go on here is let go for others."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from holdfast.core.clock import SystemClock
from holdfast.core.errors import ConfigurationError
from holdfast.jobs import worker as worker_module
from holdfast.jobs.context import JobContext
from holdfast.jobs.definition import JobSettings
from holdfast.jobs.handler_threads import LoopRunner, ThreadRunner
from holdfast.jobs.held import HeldJobs
from holdfast.jobs.lanes import Lane
from holdfast.jobs.model import Due
from holdfast.jobs.reporter import Reporter
from holdfast.jobs.running import InFlight, Running
from holdfast.jobs.settings import WorkerSettings
from holdfast.jobs.stores.base import SqlJobStore
from holdfast.jobs.telemetry import WorkerTelemetry
from holdfast.jobs.watchdog import Watchdog
from holdfast.jobs.worker import JobWorker
from holdfast.runtime.event_loop import EventLoop
from holdfast.runtime.keeper import Kept
from holdfast.runtime.transaction import HandlerTransaction
from tests.components.processes import wait_until
from tests.jobs.queues import ANNE, Queue, open_queue
from tests.jobs.workers import Work

TWO = WorkerSettings(concurrency=2, beat_seconds=0.1, watchdog_seconds=0.1, poll_seconds=0.05, drain_seconds=3)
ONE = WorkerSettings(concurrency=1, beat_seconds=0.1, watchdog_seconds=0.1, poll_seconds=0.05, drain_seconds=3)


@pytest.fixture
def queue(sqlite_url: str) -> Iterator[Queue]:
    """One database is enough: the statements are tested elsewhere."""
    with open_queue(sqlite_url) as opened:
        yield opened


def _break(monkeypatch: pytest.MonkeyPatch, part: str, now: threading.Event) -> None:
    """Let a part of the worker end as soon as ``now`` is set."""
    owner, step = {
        "the fetcher": (JobWorker, "_claim"),
        "the reporter": (Reporter, "_gathered"),
        "the keeper of leases": (Kept, "turn"),
        "the watchdog": (Watchdog, "reap"),
    }[part]
    real = getattr(owner, step)

    def end(self: Any, *arguments: Any) -> Any:
        if now.is_set():
            raise SystemExit(f"planted: {part} ends")
        return real(self, *arguments)

    monkeypatch.setattr(owner, step, end)
    monkeypatch.setattr(threading, "excepthook", lambda arguments: None)


@pytest.mark.parametrize("part", ["the fetcher", "the reporter", "the keeper of leases", "the watchdog"])
def test_a_worker_that_loses_a_part_says_so_and_ends(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, part: str
) -> None:
    now = threading.Event()
    _break(monkeypatch, part, now)
    work = Work(queue, ONE)
    job = work.job(_nothing)
    with work.running(drains=False):
        job.enqueue()
        work.until_empty()
        now.set()
        job.enqueue()
        wait_until(work.stop.is_set, "the worker to stop by itself")
    assert f"because a part of it died: {part}" in caplog.text
    queue.step(60)
    queue.store.reap()
    statuses = {row["status"] for row in queue.rows("SELECT status FROM holdfast_jobs")}
    assert statuses <= {"ready", "suspect"}


def _nothing() -> None:
    """Do nothing."""


def test_a_loop_that_dies_lets_go_of_its_jobs_at_once(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    turn_on = EventLoop._turn_on

    def turn_once(own: EventLoop, loop: asyncio.AbstractEventLoop) -> None:
        turn_on(own, loop)
        raise RuntimeError("planted: the loop breaks")

    monkeypatch.setattr(EventLoop, "_turn_on", turn_once)
    work = Work(queue, WorkerSettings(concurrency=4, beat_seconds=0.1, poll_seconds=0.05, drain_seconds=5))
    begun = threading.Event()

    async def innocent() -> None:
        begun.set()
        await asyncio.sleep(3600)

    async def wreck() -> None:
        asyncio.get_running_loop().stop()

    innocent_job, wrecking = work.job(innocent), work.job(wreck)
    with work.running(drains=False):
        job_id = innocent_job.enqueue().id
        assert begun.wait(10)
        wrecking.enqueue()
        wait_until(work.stop.is_set, "the worker to stop by itself")
    assert "died: the event loop" in caplog.text
    assert (queue.status(job_id), queue.column(job_id, "failures")) == ("ready", 0)


def test_cancelling_a_job_of_a_dead_loop_does_not_stop_the_beats(queue: Queue) -> None:
    runner, in_flight, clock = LoopRunner(1, _never, SystemClock()), InFlight(), SystemClock()
    definition = Work(queue).job(_wait_async)
    definition.enqueue()
    definition.enqueue()
    doomed, neighbour = (Running(job, definition, Lane(2, 0), clock.monotonic()) for job in queue.claim())
    in_flight.add([doomed, neighbour])
    held = HeldJobs(queue.store, ANNE, in_flight, WorkerTelemetry(ANNE, None), clock, beat_seconds=0.1)
    runner.start([doomed])
    wait_until(lambda: doomed.stop_task is not None, "the job to begin")
    runner.stop()
    queue.store.cancel([doomed.job.id], "enough")
    extended_at = neighbour.extended_at
    held.heartbeat()
    assert doomed.cancel_reason == "enough"
    assert neighbour.extended_at > extended_at, "that very beat is everybody's"
    held.start()
    extended_at = neighbour.extended_at
    wait_until(lambda: min(doomed.extended_at, neighbour.extended_at) > extended_at, "the beats after it")
    held.stop()


async def _never(running: Any) -> None:
    await asyncio.sleep(3600)


async def _wait_async() -> None:
    await asyncio.sleep(3600)


def test_a_child_task_that_exits_fails_its_own_job_only(queue: Queue) -> None:
    work = Work(queue)
    done: list[int] = []

    async def leave() -> None:
        sys.exit(3)

    async def leaving() -> None:
        await asyncio.gather(asyncio.create_task(leave()))

    async def innocent(n: int) -> None:
        await asyncio.sleep(0.05)
        done.append(n)

    work.job(leaving, max_attempts=1).enqueue()
    job = work.job(innocent)
    with work.running():
        job.enqueue_many([{"n": n} for n in range(8)])
        work.until_empty()
    assert sorted(done) == list(range(8))
    assert [letter["error_message"] for letter in queue.dead_letters()] == ["SystemExit: 3"]


def test_without_any_thread_the_jobs_are_given_back_and_the_worker_ends(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("holdfast-job-"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    work = Work(queue, ONE)
    job_id = work.job(_nothing).enqueue().id
    with work.running(drains=False):
        wait_until(work.stop.is_set, "the worker to stop by itself")
    assert queue.status(job_id) == "ready"
    assert f"threads for jobs could be started: RuntimeError at {Path(__file__).name}:" in caplog.text
    assert "died: the threads of handlers" in caplog.text


class TestMaxSeconds:
    def test_it_is_a_positive_number(self) -> None:
        with pytest.raises(ConfigurationError, match="max_seconds=0 cannot be used"):
            JobSettings(max_seconds=0)

    def test_a_coroutine_is_cancelled(self, queue: Queue) -> None:
        work = Work(queue)

        async def linger() -> None:
            await asyncio.sleep(3600)

        work.job(linger, max_attempts=1, max_seconds=0.2).enqueue()
        with work.running():
            work.until_empty()
        assert [letter["error_message"] for letter in queue.dead_letters()] == ["ran longer than max_seconds=0.2"]

    def test_a_thread_is_abandoned_its_writes_undone_and_its_place_counted_as_lost(
        self, queue: Queue, caplog: pytest.LogCaptureFixture
    ) -> None:
        _check_abandoned(queue, caplog)

    def test_a_worker_without_a_place_left_ends(self, queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
        release = threading.Event()

        def linger() -> None:
            release.wait(60)

        work = Work(queue, ONE)
        work.job(linger, max_attempts=1, max_seconds=0.1).enqueue()
        with work.running(drains=False):
            wait_until(work.stop.is_set, "the worker to stop by itself")
        release.set()
        assert "died: the last place for a handler" in caplog.text
        assert len(queue.dead_letters()) == 1


def test_a_worker_whose_every_thread_is_busy_for_long_claims_nothing_and_says_so_once(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(worker_module, "_LONG_SECONDS", 0.2)
    release, looks, look_around = threading.Event(), list[JobWorker](), JobWorker._look_around

    def noted(worker: JobWorker) -> None:
        look_around(worker)
        looks.append(worker)

    def linger() -> None:
        assert release.wait(60)

    monkeypatch.setattr(JobWorker, "_look_around", noted)

    work = Work(queue, TWO)
    lingering, other = work.job(linger), work.job(_nothing)
    with work.running():
        lingering.enqueue_many([{}] * 2)
        wait_until(lambda: "Every thread has been busy" in caplog.text, "the worker to say so")
        other.enqueue()
        looks.clear()
        wait_until(lambda: len(looks) > 3, "it to look around")
        assert queue.rows("SELECT attempt FROM holdfast_jobs WHERE operation = '_nothing'") == [{"attempt": 0}]
        release.set()
        work.until_empty()
        wait_until(lambda: "that is over" in caplog.text, "the worker to say that, too")
    assert caplog.text.count("Every thread has been busy with one job") == 2  # once that it is, once that it is over


def _check_abandoned(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    release, ended = threading.Event(), threading.Event()
    with queue.engine.begin() as connection:
        connection.execute(text("CREATE TABLE effects (n INTEGER)"))

    def linger(context: JobContext) -> None:
        try:
            context.transaction.execute(text("INSERT INTO effects VALUES (1)"))
            release.wait(60)
            context.transaction.execute(text("INSERT INTO effects VALUES (2)"))
        finally:
            ended.set()

    work = Work(queue)
    stuck = work.job(linger, max_attempts=1, max_seconds=1)
    other = work.job(_nothing)
    with work.running():
        stuck.enqueue()
        wait_until(queue.dead_letters, "the attempt to be reported")
        other.enqueue_many([{}] * 5)
        work.until_empty()
        release.set()
        assert ended.wait(10)
        wait_until(lambda: "its report was refused" in caplog.text, "the late report to be refused")
    assert "Places lost so far: 1" in caplog.text
    assert queue.rows("SELECT n FROM effects") == []


@pytest.mark.parametrize("database", ["postgres_url", "mariadb_url"])
def test_the_connection_of_an_abandoned_thread_is_cut(
    request: pytest.FixtureRequest, database: str, caplog: pytest.LogCaptureFixture
) -> None:
    with open_queue(request.getfixturevalue(database)) as queue:
        _check_abandoned(queue, caplog)


def test_a_claim_that_hangs_does_not_hold_what_has_not_begun(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    hangs, is_hanging, answer = threading.Event(), threading.Event(), threading.Event()
    begun, release = threading.Event(), threading.Event()
    promote = SqlJobStore.next_due

    def hang(store: SqlJobStore) -> Due:
        if hangs.is_set():
            is_hanging.set()
            answer.wait(60)
        return promote(store)

    def linger() -> None:
        begun.set()
        release.wait(60)

    monkeypatch.setattr(SqlJobStore, "next_due", hang)
    work = Work(queue, WorkerSettings(concurrency=1, beat_seconds=0.1, poll_seconds=0.05, drain_seconds=600))
    monkeypatch.setattr(worker_module, "_WAITING_SECONDS", 600.0)
    job = work.job(linger)
    ids = [job.enqueue().id for _ in range(3)]
    with work.running() as worker:
        worker._jobs.pace._ahead = 10
        assert begun.wait(10)
        wait_until(lambda: queue.column(ids[2], "status") == "running", "jobs to be claimed ahead")
        hangs.set()
        assert is_hanging.wait(10)
        work.stop.set()
        wait_until(lambda: {queue.status(job_id) for job_id in ids[1:]} == {"ready"}, "what waits to be given back")
        answer.set()
        release.set()
    assert queue.status(ids[0]) is None


def test_while_a_connection_is_cut_the_worker_goes_on_watching(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    release = threading.Event()
    monkeypatch.setattr(HandlerTransaction, "cut", lambda transaction: release.wait(60))

    def linger(context: JobContext) -> None:
        assert context.transaction
        release.wait(60)

    work = Work(queue)
    work.job(linger, max_attempts=1, max_seconds=0.1).enqueue_many([{}, {}])
    with work.running() as worker:
        wait_until(lambda: worker._lost == 2, "both to be abandoned")
        assert queue.dead_letters() == []
        release.set()
        wait_until(lambda: len(queue.dead_letters()) == 2, "both to be reported")
        wait_until(lambda: worker._lost == 0, "both to come back")
    assert "Places lost so far: 2" in caplog.text


def test_what_has_just_been_reported_is_not_abandoned(queue: Queue) -> None:
    definition = Work(queue).job(_nothing)
    definition.enqueue()
    running = Running(queue.claim_one(), definition, Lane(1, 0), 0.0)
    running.begin(0.0)
    runner = ThreadRunner([], lambda job: None, SystemClock())
    assert running.take_report()
    assert not runner.abandon(running)
    assert (runner.lost, running.is_abandoned) == (0, False)


def test_an_abandoned_suspect_takes_a_place(queue: Queue) -> None:
    release = threading.Event()

    def linger() -> None:
        release.wait(60)

    work = Work(queue)
    job_id = work.job(linger, max_attempts=2, max_seconds=0.1, retry_base_seconds=60, retry_max_seconds=60).enqueue().id
    queue.claim_one()
    queue.step(60)
    queue.store.reap()
    assert queue.status(job_id) == "suspect"
    with work.running() as worker:
        wait_until(lambda: worker._lost == 1, "the suspect to be abandoned")
        release.set()
        wait_until(lambda: worker._lost == 0, "its thread to come back")


def test_time_for_which_another_handler_blocks_the_loop_does_not_count_as_its_own(queue: Queue) -> None:
    work, begun, go_on = Work(queue, TWO), threading.Event(), threading.Event()

    async def limited() -> None:
        begun.set()
        while not go_on.is_set():
            await asyncio.sleep(0.01)
        for _ in range(10):  # turns in which it could be cancelled
            await asyncio.sleep(0)

    async def blocking() -> None:
        assert begun.wait(60)
        assert go_on.wait(60)

    work.job(limited, max_seconds=2.0, max_attempts=1).enqueue()
    blocking_job = work.job(blocking)
    with work.running() as worker:
        wait_until(begun.is_set, "the limited job to begin")
        blocking_job.enqueue()
        wait_until(lambda: worker._loop._loop.stuck_seconds > 2.5, "the loop to be blocked for longer than that")
        go_on.set()
        work.until_empty()
    assert queue.dead_letters() == []
    assert [entry["status"] for entry in queue.history()] == ["Succeeded", "Succeeded"]
