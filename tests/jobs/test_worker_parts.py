"""A worker watches its own parts, and handlers that do not end: what cannot go on here is let go for others."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import text

from holdfast.core.clock import SystemClock
from holdfast.core.errors import ConfigurationError
from holdfast.jobs.context import JobContext
from holdfast.jobs.definition import JobSettings
from holdfast.jobs.keeper import Keeper
from holdfast.jobs.reporter import Reporter
from holdfast.jobs.runners import LoopRunner
from holdfast.jobs.running import Running
from holdfast.jobs.worker import JobWorker, WorkerSettings
from tests.components.processes import wait_until
from tests.jobs.queues import Queue, open_queue
from tests.jobs.workers import Work

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
        "the keeper of leases": (Keeper, "beat"),
    }[part]
    real = getattr(owner, step)

    def end(self: Any, *arguments: Any) -> Any:
        if now.is_set():
            raise SystemExit(f"planted: {part} ends")
        return real(self, *arguments)

    monkeypatch.setattr(owner, step, end)
    monkeypatch.setattr(threading, "excepthook", lambda arguments: None)


@pytest.mark.parametrize("part", ["the fetcher", "the reporter", "the keeper of leases"])
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
    turn_on = LoopRunner._turn_on

    def turn_once(runner: LoopRunner, loop: asyncio.AbstractEventLoop) -> None:
        turn_on(runner, loop)
        raise RuntimeError("planted: the loop breaks")

    monkeypatch.setattr(LoopRunner, "_turn_on", turn_once)
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
    runner = LoopRunner(1, _never, SystemClock())
    definition = Work(queue).job(_wait_async)
    definition.enqueue()
    running = Running(queue.claim_one(), definition, 0.0)
    runner.start([running])
    wait_until(lambda: running.stop_task is not None, "the job to begin")
    runner.stop()
    running.cancel("enough")


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
    assert "can't start new thread" in caplog.text
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
