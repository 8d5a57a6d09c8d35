"""Completions that meet a broken connection, a crashed server or a locked file: none is lost, none counts twice."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace

import pytest
from sqlalchemy import text
from sqlalchemy.engine import Engine

from holdfast.core.clock import SystemClock
from holdfast.core.config import DbConfig
from holdfast.core.errors import Ambiguous
from holdfast.database.pools import EngineProvider
from holdfast.jobs.context import JobContext
from holdfast.jobs.definition import JobDefinition, JobSettings
from holdfast.jobs.settings import WorkerSettings
from holdfast.jobs.store import job_store
from holdfast.jobs.worker import JobWorker
from holdfast.records.database import changing
from holdfast.runtime.housekeeping import Chore, Housekeeping
from tests.components.processes import wait_until
from tests.components.proxy import FaultProxy
from tests.jobs.faults.conftest import Scene

# Nothing but the job itself may commit while an answer is waited for: polls and beats are rare.
QUIET = WorkerSettings(concurrency=30, beat_seconds=60, watchdog_seconds=60, poll_seconds=60, drain_seconds=20)
LEASE_SECONDS = 300.0


class StoreCalls:
    """A worker in this process whose connections can be made to go through a proxy."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._provider = EngineProvider()

    def engine(self, url: str) -> Engine:
        return self._provider.create_isolated_engine(DbConfig(connection_url=url))

    def job(self, function: object) -> JobDefinition:
        settings = JobSettings(lease_seconds=LEASE_SECONDS, retry_base_seconds=0.01, retry_max_seconds=0.02)
        assert callable(function)
        return JobDefinition(function, topic="answers", store=lambda: self._scene.hf.jobs.store, settings=settings)

    @contextmanager
    def working(
        self, jobs: Sequence[JobDefinition], store_url: str, transaction_url: str, settings: WorkerSettings = QUIET
    ) -> Iterator[None]:
        """Run the worker inside the block; at its end it must drain in time."""
        engines = [self.engine(store_url), self.engine(self._scene.url), self.engine(transaction_url)]
        stop, finished = threading.Event(), []
        worker = JobWorker(
            job_store(engines[0]),
            jobs,
            stop,
            keeper_store=job_store(engines[1]),
            transaction_engine=engines[2],
            settings=settings,
        )
        thread = threading.Thread(target=lambda: finished.append(worker.run()))
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            for engine in engines:
                engine.dispose()
        assert finished == [True]


@pytest.mark.parametrize("has_landed", [True, False])
def test_a_commit_whose_answer_was_lost_is_neither_lost_nor_repeated(server_scene: Scene, has_landed: bool) -> None:
    """The connection breaks after COMMIT was sent: before the server's answer, or before the server saw it."""
    scene = server_scene
    assert scene.server is not None
    sprung: list[threading.Event] = []
    with FaultProxy(scene.server.port) as proxy:
        calls = StoreCalls(scene)

        def write(context: JobContext, n: int) -> None:
            insert = text("INSERT INTO effects VALUES (:n, :attempt)")
            context.transaction.execute(insert, {"n": n, "attempt": context.attempt})
            if context.attempt == 1:
                sprung.append((proxy.drop_next_answer if has_landed else proxy.drop_next_request)(b"COMMIT"))

        job = calls.job(write)
        job_id = job.enqueue(n=1).id
        with calls.working([job], scene.url, proxy.redirect(scene.url), replace(QUIET, poll_seconds=0.2)):
            wait_until(lambda: scene.view(job_id) is None, "the job to end")
    assert [event.is_set() for event in sprung] == [True]
    attempt = 1 if has_landed else 2
    assert scene.history(job_id) == [(attempt, "Succeeded")], "an attempt that the database undid is not charged"
    assert scene.effects(1) == [attempt]


@pytest.mark.parametrize("has_landed", [True, False])
def test_a_grouped_completion_whose_answer_was_lost_counts_once(
    server_scene: Scene, has_landed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    scene = server_scene
    assert scene.server is not None
    last_request = {"postgresql": b"DELETE FROM holdfast_jobs", "mysql": b"COMMIT"}[scene.hf.database.dialect.name]
    with FaultProxy(scene.server.port) as proxy:
        calls = StoreCalls(scene)
        begun, release = [], threading.Event()

        def wait(n: int) -> None:
            begun.append(n)
            release.wait(30)

        job = calls.job(wait)
        job.enqueue_many([{"n": n} for n in range(10)])
        with calls.working([job], proxy.redirect(scene.url), scene.url):
            wait_until(lambda: len(begun) == 10, "all to run")
            sprung = (proxy.drop_next_answer if has_landed else proxy.drop_next_request)(last_request)
            release.set()
            wait_until(lambda: left(scene) == 0, "all to end")
    assert sprung.is_set()
    assert told(scene) == [(n, 1, "Succeeded") for n in range(10)]
    assert "its report was refused" not in caplog.text


def test_completions_that_wait_for_a_crashed_server_arrive_once(
    server_scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene = server_scene
    assert scene.server is not None
    with held_completions(scene) as release:
        scene.server.stop(immediate=True)
        release.set()
        wait_until(lambda: "Reporting jobs did not work" in caplog.text, "a report in vain")
        scene.server.start()
        scene.hf.database.dispose()
        wait_until(lambda: left(scene) == 0, "all to end")
    assert told(scene) == [(n, 1, "Succeeded") for n in range(20)]
    assert "its report was refused" not in caplog.text


def test_completions_that_wait_for_a_locked_file_arrive_once(
    file_scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene = file_scene
    with held_completions(scene, "?timeout=0.5") as release:
        with closing(sqlite3.connect(scene.url.removeprefix("sqlite:///"), isolation_level=None)) as stranger:
            stranger.execute("BEGIN IMMEDIATE")
            release.set()
            wait_until(lambda: "Reporting jobs did not work" in caplog.text, "a report in vain")
        wait_until(lambda: left(scene) == 0, "all to end")
    assert told(scene) == [(n, 1, "Succeeded") for n in range(20)]
    assert "its report was refused" not in caplog.text


def test_a_dead_pooled_connection_does_not_cost_an_attempt_on_mariadb(mariadb_scene: Scene) -> None:
    """The pool of ``context.transaction`` does not know yet that the server was away."""
    scene = mariadb_scene
    assert scene.server is not None
    calls = StoreCalls(scene)

    def write(context: JobContext, n: int) -> None:
        insert = text("INSERT INTO effects VALUES (:n, :attempt)")
        context.transaction.execute(insert, {"n": n, "attempt": context.attempt})

    job = calls.job(write)
    with calls.working([job], scene.url, scene.url, replace(QUIET, poll_seconds=0.2)):
        job.enqueue(n=1)
        wait_until(lambda: scene.effects(1) == [1], "the first, which leaves its connection in the pool")
        wait_until(lambda: left(scene) == 0, "its end")
        scene.server.restart(immediate=True)
        scene.hf.database.dispose()
        scene.hf.jobs.store.engine.dispose()
        job.enqueue(n=2)
        wait_until(lambda: left(scene) == 0, "the second to end")
    assert scene.effects(2) == [1]


def test_a_change_of_records_whose_commit_was_not_answered_is_told_so(server_scene: Scene) -> None:
    scene = server_scene
    assert scene.server is not None
    with FaultProxy(scene.server.port) as proxy:
        engine = StoreCalls(scene).engine(proxy.redirect(scene.url))
        change = changing(engine)
        connection = change.__enter__()
        connection.execute(text("INSERT INTO effects VALUES (1, 1)"))
        sprung = proxy.drop_next_answer(b"COMMIT")
        with pytest.raises(Ambiguous, match="broke before"):
            change.__exit__(None, None, None)
        engine.dispose()
    assert sprung.is_set()
    assert scene.effects(1) == [1]


def test_a_chore_that_finds_no_server_is_only_put_off(server_scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    scene = server_scene
    assert scene.server is not None
    asked = threading.Event()

    def prune_in_vain() -> float:
        asked.set()
        with changing(scene.hf.database):
            return 60.0

    stop = threading.Event()
    housekeeping = Housekeeping([Chore("pruning", prune_in_vain, 60.0)], stop, clock=SystemClock())
    thread = threading.Thread(target=housekeeping.run)
    scene.hf.database.dispose()
    scene.server.stop(immediate=True)
    try:
        thread.start()
        assert asked.wait(30)
        wait_until(lambda: "Pruning did not work and is tried again" in caplog.text, "word of it")
    finally:
        stop.set()
        thread.join()
        scene.server.start()


@contextmanager
def held_completions(scene: Scene, options: str = "") -> Iterator[threading.Event]:
    """Run 20 jobs, threads and coroutines, that all end when the yielded event is set. Options are the URL's."""
    calls = StoreCalls(scene)
    begun, release = [], threading.Event()

    def wait(n: int) -> None:
        begun.append(n)
        release.wait(60)

    async def wait_async(n: int) -> None:
        begun.append(n)
        await asyncio.to_thread(release.wait, 60)

    threads, coroutines = calls.job(wait), calls.job(wait_async)
    threads.enqueue_many([{"n": n} for n in range(10)])
    coroutines.enqueue_many([{"n": n} for n in range(10, 20)])
    with calls.working([threads, coroutines], f"{scene.url}{options}", scene.url):
        wait_until(lambda: len(begun) == 20, "all to run")
        yield release


def left(scene: Scene) -> int:
    return int(scene.rows("SELECT count(*) AS n FROM holdfast_jobs")[0]["n"])


def told(scene: Scene) -> list[tuple[int, int, str]]:
    """Return what the history tells: the number in the payload, the attempt, the status."""
    found = scene.rows("SELECT input, attempt, status FROM holdfast_history")
    return sorted((int(row["input"].strip('{}"n:')), row["attempt"], row["status"]) for row in found)
