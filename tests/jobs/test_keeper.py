"""Beats and the watchdog: who beats late is not its own victim, and beats cost the database little."""

from __future__ import annotations

import logging

import pytest
from sqlalchemy import text

from holdfast.core.clock import SystemClock
from holdfast.jobs.execution import Execution
from holdfast.jobs.keeper import Keeper
from holdfast.jobs.running import InFlight, Running
from holdfast.jobs.telemetry import WorkerTelemetry
from tests.clocks import SteppedClock
from tests.components.processes import wait_until
from tests.jobs.queues import ANNE, Queue, open_queue
from tests.jobs.workers import Work


def keeper_of(queue: Queue, in_flight: InFlight) -> Keeper:
    return Keeper(
        queue.store,
        ANNE,
        in_flight,
        WorkerTelemetry(ANNE, None),
        SystemClock(),
        beat_seconds=60,
        watchdog_seconds=60,
        on_reaped=lambda: None,
    )


def held(queue: Queue, work: Work) -> tuple[Running, InFlight]:
    definition = work.job(lambda: None)
    queue.add()
    running = Running(queue.claim_one(), definition, 0.0)
    in_flight = InFlight()
    in_flight.add([running])
    return running, in_flight


def lease_has_moved(queue: Queue, before: object) -> bool:
    return bool(queue.rows("SELECT lease_until FROM holdfast_jobs")[0]["lease_until"] != before)


def test_a_worker_that_was_stopped_beats_before_it_reaps(queue: Queue) -> None:
    running, in_flight = held(queue, Work(queue))
    before = queue.rows("SELECT lease_until FROM holdfast_jobs")[0]["lease_until"]
    queue.step(31)  # the lease has run out, and nobody has noticed yet
    keeper = keeper_of(queue, in_flight)
    keeper.start()
    wait_until(lambda: lease_has_moved(queue, before), "a beat")
    keeper.stop()
    assert queue.status(running.job.id) == "running"
    assert queue.history() == []
    assert not running.is_lost


def test_a_claim_that_others_took_is_lost_at_the_next_beat(queue: Queue) -> None:
    running, in_flight = held(queue, Work(queue))
    queue.step(31)
    queue.store.reap()
    assert keeper_of(queue, in_flight).beat()
    assert running.is_lost
    assert running.lost_event.is_set()


def test_a_job_that_is_being_reported_is_not_taken_for_lost(queue: Queue) -> None:
    running, in_flight = held(queue, Work(queue))
    running.is_reported = True
    queue.step(31)
    queue.store.reap()
    assert keeper_of(queue, in_flight).beat()
    assert not running.is_lost


def test_without_an_answer_a_lease_is_lost_before_others_may_reap_it(queue: Queue) -> None:
    clock = SteppedClock()
    running, in_flight = held(queue, Work(queue))
    keeper = Keeper(
        queue.store,
        ANNE,
        in_flight,
        WorkerTelemetry(ANNE, None),
        clock,
        beat_seconds=10,
        watchdog_seconds=10,
        on_reaped=lambda: None,
    )
    with queue.engine.begin() as connection:
        connection.execute(text("ALTER TABLE holdfast_jobs RENAME TO elsewhere"))
    clock.advance(20)
    assert not keeper.beat()
    keeper.lose_what_ran_out()
    lost = [running.is_lost]
    clock.advance(8)
    assert not keeper.beat()
    keeper.lose_what_ran_out()
    lost.append(running.is_lost)
    assert lost == [False, True]
    assert not running.is_taken


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
        transaction = execution.open(Running(queue.claim_one(), work.job(lambda: None), 0.0))
        transaction.connection.execute(text("SELECT 1"))
        clock.advance(11)
        with caplog.at_level(logging.WARNING, "holdfast.jobs"):
            transaction.close()
    assert "held SQLite's write lock for 11.0 s" in caplog.text
