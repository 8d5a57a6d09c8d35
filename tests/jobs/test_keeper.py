"""Beats and the watchdog: who beats late is not its own victim, and beats cost the database little."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest
from sqlalchemy import text

from holdfast.core.clock import Clock, SystemClock
from holdfast.jobs.held import HeldJobs
from holdfast.jobs.lanes import Lane
from holdfast.jobs.runner import Execution
from holdfast.jobs.running import InFlight, Running
from holdfast.jobs.stores.base import SqlJobStore
from holdfast.jobs.telemetry import WorkerTelemetry
from holdfast.jobs.watchdog import Watchdog
from holdfast.lease.store import StateStore
from holdfast.lease.stores.memory import MemoryDocumentStore
from holdfast.runtime.keeper import Keeper, Kept, keeping
from tests.clocks import SteppedClock
from tests.components.processes import wait_until
from tests.jobs.queues import ANNE, Queue, open_queue
from tests.jobs.workers import Work


def held_jobs(queue: Queue, in_flight: InFlight, clock: Clock | None = None, *, beat_seconds: float = 60) -> HeldJobs:
    telemetry = WorkerTelemetry(ANNE, None)
    return HeldJobs(queue.store, ANNE, in_flight, telemetry, clock or SystemClock(), beat_seconds=beat_seconds)


def watchdog_of(queue: Queue, jobs: HeldJobs) -> Watchdog:
    telemetry = WorkerTelemetry(ANNE, None)
    return Watchdog(queue.store, telemetry, SystemClock(), seconds=60, before=jobs.heartbeat, on_reaped=lambda: None)


def held(queue: Queue, work: Work, **options: Any) -> tuple[Running, InFlight]:
    definition = work.job(lambda: None)
    queue.add(**options)
    running = Running(queue.claim_one(), definition, Lane(1, 0), 0.0)
    in_flight = InFlight()
    in_flight.add([running])
    return running, in_flight


def lease_has_moved(queue: Queue, before: object) -> bool:
    return bool(queue.rows("SELECT lease_until FROM holdfast_jobs")[0]["lease_until"] != before)


def test_a_worker_that_was_stopped_beats_before_it_reaps(queue: Queue) -> None:
    running, in_flight = held(queue, Work(queue))
    before = queue.rows("SELECT lease_until FROM holdfast_jobs")[0]["lease_until"]
    queue.step(31)  # the lease has run out, and nobody has noticed yet
    watchdog = watchdog_of(queue, held_jobs(queue, in_flight))
    watchdog.start()
    wait_until(lambda: lease_has_moved(queue, before), "a beat")
    watchdog.stop()
    assert queue.status(running.job.id) == "running"
    assert queue.history() == []
    assert not running.is_lost


def test_a_claim_that_others_took_is_lost_at_the_next_beat(queue: Queue) -> None:
    running, in_flight = held(queue, Work(queue))
    queue.step(31)
    queue.store.reap()
    held_jobs(queue, in_flight).heartbeat()
    assert running.is_lost
    assert running.lost_event.is_set()


def test_a_job_that_is_being_reported_is_not_taken_for_lost(queue: Queue) -> None:
    running, in_flight = held(queue, Work(queue))
    running.is_reported = True
    queue.step(31)
    queue.store.reap()
    held_jobs(queue, in_flight).heartbeat()
    assert not running.is_lost


def test_without_an_answer_a_lease_is_lost_before_others_may_reap_it(queue: Queue) -> None:
    clock = SteppedClock()
    running, in_flight = held(queue, Work(queue))
    jobs = held_jobs(queue, in_flight, clock, beat_seconds=10)
    kept = Kept(jobs)
    jobs.heartbeat()
    with queue.engine.begin() as connection:
        connection.execute(text("ALTER TABLE holdfast_jobs RENAME TO elsewhere"))
    clock.advance(20)
    kept.turn()
    lost = [running.is_lost]
    clock.advance(8)
    kept.turn()
    lost.append(running.is_lost)
    assert lost == [False, True]
    assert jobs.seconds_since_renewal() == 28, "a beat that failed counted"
    assert not running.is_taken


class Silence:
    """Lets statements of a store hang until it is over."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.asked, self.over = threading.Event(), threading.Event()
        real = getattr(SqlJobStore, name)

        def hang(store: SqlJobStore, *arguments: Any) -> Any:
            self.asked.set()
            assert self.over.wait(60)
            return real(store, *arguments)

        monkeypatch.setattr(SqlJobStore, name, hang)


def test_a_beat_that_is_never_answered_loses_the_job_by_the_clock(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    silence = Silence(monkeypatch, "heartbeat")
    running, in_flight = held(queue, Work(queue), lease_seconds=0.5)
    jobs = held_jobs(queue, in_flight)
    jobs.start()
    running.extended_at = SystemClock().monotonic()
    jobs.expect_lease(0.5)
    assert silence.asked.wait(30)
    assert running.lost_event.wait(30), "the job is still believed in"
    assert not running.is_taken
    silence.over.set()
    jobs.stop()


def test_an_answer_that_comes_late_does_not_set_a_lease_back(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SteppedClock()
    running, in_flight = held(queue, Work(queue))
    jobs = held_jobs(queue, in_flight, clock)
    with monkeypatch.context() as patched:
        silence = Silence(patched, "heartbeat")
        late = threading.Thread(target=jobs.heartbeat)
        late.start()
        assert silence.asked.wait(30)
    clock.advance(20)
    jobs.heartbeat()
    silence.over.set()
    late.join()
    assert (running.extended_at, jobs.seconds_since_renewal()) == (20, 0)


def test_a_reap_that_hangs_holds_up_no_beat(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    silence = Silence(monkeypatch, "reap")
    begun, release = threading.Event(), threading.Event()

    def linger() -> None:
        begun.set()
        assert release.wait(60)

    work = Work(queue)
    work.job(linger, lease_seconds=1.5).enqueue()
    with work.running():
        assert silence.asked.wait(30)
        assert begun.wait(30)
        before = queue.rows("SELECT lease_until FROM holdfast_jobs")[0]["lease_until"]
        wait_until(lambda: lease_has_moved(queue, before), "a beat beside the reap that hangs")
        release.set()
        work.until_empty()
        silence.over.set()


def test_jobs_are_kept_by_the_threads_that_keep_everything_else(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.runtime.keeper._of_process", Keeper(SystemClock()))
    before = set(threading.enumerate())
    _, in_flight = held(queue, Work(queue))
    lease_until = queue.rows("SELECT lease_until FROM holdfast_jobs")[0]["lease_until"]
    lease = StateStore(MemoryDocumentStore(), app_name="shop").acquire("orders", ttl_seconds=30)
    jobs = held_jobs(queue, in_flight)
    with keeping(lease, SystemClock()):
        jobs.start()
        jobs.beat_now()
        wait_until(lambda: lease_has_moved(queue, lease_until), "a beat that was asked for")
        names = [thread.name for thread in set(threading.enumerate()) - before]
        jobs.stop()
    assert sorted(names) == ["holdfast-beats", "holdfast-keeper"]


@pytest.mark.parametrize("name", ["heartbeat", "progress"])
def test_beats_are_heap_only_updates(postgres_url: str, name: str) -> None:
    with open_queue(postgres_url) as queue:
        for _ in range(5):  # few enough for one page: there is room for new versions beside the old ones
            queue.add()
        claims = [job.claim for job in queue.claim(5)]
        batch: dict[str, list[object]] = {"ids": [claim.id for claim in claims], "attempts": [1] * len(claims)}
        if name == "progress":
            batch["progress"] = ["1"] * len(claims)
        hot = text("SELECT pg_stat_get_xact_tuples_hot_updated('holdfast_jobs'::regclass)")
        with queue.engine.begin() as connection:
            before = connection.execute(hot).scalar_one()
            queue.store._change_on(connection, name, batch, worker=ANNE)
            assert connection.execute(hot).scalar_one() - before == len(claims)


def test_a_long_transaction_on_sqlite_is_warned_of(sqlite_url: str, caplog: pytest.LogCaptureFixture) -> None:
    with open_queue(sqlite_url) as queue:
        work = Work(queue)
        clock = SteppedClock()
        queue.add(lease_seconds=30)
        execution = Execution(
            queue.store,
            ANNE,
            queue.engine,
            WorkerTelemetry(ANNE, None),
            clock,
            lambda report: None,
            lambda running: None,
        )
        transaction = execution.open(Running(queue.claim_one(), work.job(lambda: None), Lane(1, 0), 0.0))
        transaction.connection.execute(text("SELECT 1"))
        clock.advance(11)
        with caplog.at_level(logging.WARNING, "holdfast.jobs"):
            transaction.close()
    assert "held SQLite's write lock for 11.0 s" in caplog.text
