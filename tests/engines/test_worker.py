"""The workers of engines: they drain, give back what they cannot finish, outlive errors, and keep messages invisible.

In a database that is the jobs' worker; in Azure the engines' own.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from holdfast.core.errors import DbConnectionError, Unavailable, WorkerDiedError
from holdfast.engines.context import EngineContext
from holdfast.engines.messages import EngineMessage
from holdfast.engines.queues.protocol import EngineQueue
from holdfast.engines.runner import Outcome
from holdfast.engines.worker import EngineWorker
from holdfast.jobs.settings import WorkerSettings
from holdfast.jobs.worker import JobWorker
from holdfast.runtime.housekeeping import Housekeeping
from holdfast.runtime.supervisor import Part, Supervisor, WorkerPart
from tests.components.processes import wait_until
from tests.engines.driving import queue_of
from tests.engines.places import ENGINE, Bench, Place
from tests.engines.queues import free_what_the_dead_held

AZURE = [pytest.param("azure", marks=pytest.mark.component("azurite"))]


class Gate:
    """An operation that waits until the test lets it go on."""

    def __init__(self) -> None:
        self.entered, self.goes_on, self.left = threading.Event(), threading.Event(), threading.Event()

    def __call__(self, context: EngineContext, message: EngineMessage) -> None:
        self.entered.set()
        assert self.goes_on.wait(60)
        self.left.set()


@contextmanager
def running(bench: Bench, stop: threading.Event, worker: Part, drain_seconds: float = 600.0) -> Iterator[list[bool]]:
    """Run a worker beside the block, its time passing by itself; in the end it is stopped."""
    finished: list[bool] = []
    parts: list[Part] = [worker, Housekeeping(bench.hf.engines.chores(), stop, clock=bench.place.clock)]
    supervisor = Supervisor(parts, stop, clock=bench.place.clock, drain_seconds=drain_seconds)
    thread = threading.Thread(target=lambda: finished.append(supervisor.run()))
    with passing_time(bench):
        thread.start()
        try:
            yield finished
        finally:
            stop.set()
            thread.join(60)
            assert not thread.is_alive()


@contextmanager
def passing_time(bench: Bench) -> Iterator[None]:
    """Let the time of a bench pass beside the block."""
    is_over = threading.Event()

    def pass_time() -> None:
        while not is_over.wait(0.005):
            bench.place.clock.advance(0.25)

    timer = threading.Thread(target=pass_time)
    timer.start()
    try:
        yield
    finally:
        is_over.set()
        timer.join(60)


def worker_of(bench: Bench, drain_seconds: float = 600.0) -> tuple[threading.Event, Part]:
    stop = threading.Event()
    if bench.place.is_azure:
        return stop, bench.hf.engines.worker(stop)
    handlers = bench.hf.engines.handlers()
    worker = JobWorker(
        handlers[0].delivering.store,
        handlers,
        stop,
        transaction_engine=bench.hf.database,
        settings=WorkerSettings(drain_seconds=drain_seconds, watchdog_seconds=1.0),
        clock=bench.place.clock,
    )
    return stop, WorkerPart("the jobs' worker", worker.run)


def test_a_worker_takes_all_messages_and_drains(bench: Bench) -> None:
    for number in range(12):
        bench.send(f"m-{number}", f"c-{number}")
    stop, worker = worker_of(bench)
    with running(bench, stop, worker) as finished:
        wait_until(lambda: len(bench.executions) == 12, "all executions")
    assert finished == [True]
    assert [bench.ends(f"c-{number}") for number in range(12)] == [["Succeeded"]] * 12
    assert bench.is_empty


def test_a_stopped_worker_lets_what_runs_finish(bench: Bench) -> None:
    bench.work = gate = Gate()
    bench.send()
    stop, worker = worker_of(bench)
    with running(bench, stop, worker) as finished:
        assert gate.entered.wait(60)
        stop.set()
        gate.goes_on.set()
    assert finished == [True]
    assert bench.ends() == ["Succeeded"]


def test_what_outlives_the_drain_comes_again_uncounted_and_is_not_recorded(bench: Bench) -> None:
    bench.work = gate = Gate()
    bench.send()
    stop, worker = worker_of(bench, 1.0)
    with running(bench, stop, worker, drain_seconds=1.0) as finished:
        assert gate.entered.wait(60)
    assert finished == [False]
    again = bench.next()
    assert again.dequeue_count == 1
    gate.goes_on.set()
    assert gate.left.wait(60)
    assert bench.history == []


def test_a_singleton_that_outlives_the_drain_leaves_nothing_locked(singleton: Bench) -> None:
    bench = singleton
    bench.work = gate = Gate()
    bench.send()
    stop, worker = worker_of(bench, 1.0)
    with running(bench, stop, worker, drain_seconds=1.0) as finished:
        assert gate.entered.wait(60)
    assert finished == [False]
    bench.work = lambda *given: None
    queue = bench.queue
    [again] = queue.receive(1, 30)
    assert bench.flow(queue).handle(again) is Outcome.SUCCEEDED, "no 409: lease and lock were given up"
    gate.goes_on.set()
    assert gate.left.wait(60)
    assert bench.statuses == ["Succeeded"]


@pytest.mark.parametrize("place", AZURE, indirect=True)
def test_a_receiver_that_dies_is_a_part_that_died(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: object) -> None:
        raise SystemExit("planted")

    _, worker = worker_of(bench)
    assert isinstance(worker, EngineWorker)
    monkeypatch.setattr("threading.excepthook", lambda arguments: None)
    monkeypatch.setattr(worker._works[0].queue, "receive", die)
    with passing_time(bench), pytest.raises(WorkerDiedError, match=f"lost what receives for {ENGINE}"):
        worker.run()


@pytest.mark.parametrize("place", AZURE, indirect=True)
@pytest.mark.parametrize("step", ["receive", "delete", "extend"])
def test_errors_of_the_queue_do_not_end_the_worker(place: Place, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(place, max_retry_attempts=1000)
    bench.send()
    stop, worker = worker_of(bench)
    assert isinstance(worker, EngineWorker)
    queue = worker._works[0].queue
    done, failed = getattr(queue, step), list[int]()

    def fail_twice(*given: Any) -> Any:
        if len(failed) < 2:
            failed.append(1)
            raise Unavailable("The queue is down.")
        return done(*given)

    def has_succeeded() -> bool:
        if not worker._deliveries:  # one that is at work would be taken from it again and again
            bench.place.let_time_pass(1.0)  # so that the message comes again
        return bench.ends() == ["Succeeded"] and len(failed) == 2

    monkeypatch.setattr(queue, step, fail_twice)
    with running(bench, stop, worker):
        wait_until(has_succeeded, "the success", 60)


def test_an_error_of_an_operation_does_not_end_the_worker(bench: Bench) -> None:
    bench.fails = lambda context: context.message_id == "m-1"
    for number in (1, 2):
        bench.send(f"m-{number}", f"c-{number}")
    stop, worker = worker_of(bench)
    with running(bench, stop, worker):
        wait_until(lambda: bench.ends("c-1") and bench.ends("c-2"), "both ends", 60)
    assert (bench.ends("c-1"), bench.ends("c-2")) == (["dead"], ["Succeeded"])


# Heartbeats


class Extensions:
    """Counts the extensions of messages that were answered, and lets some of them fail."""

    def __init__(self, queue: EngineQueue, fails: int, error: Exception) -> None:
        self.count = 0
        self._extend, self._fails, self._error = queue.extend, fails, error

    def __call__(self, *given: Any) -> Any:
        try:
            if self.count < self._fails:
                raise self._error
            return self._extend(*given)
        finally:
            self.count += 1


@pytest.mark.parametrize("place", AZURE, indirect=True)
@pytest.mark.parametrize("error", [Unavailable("busy"), DbConnectionError("down"), ValueError("odd")])
@pytest.mark.parametrize("fails", [0, 1])
def test_a_message_stays_invisible_while_its_operation_runs(
    place: Place, fails: int, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For more than three times its visibility, even if a heartbeat fails."""
    bench = Bench(place, visibility_seconds=30.0)
    bench.send()
    queue = bench.queue
    extensions = Extensions(queue, fails, error)
    monkeypatch.setattr(queue, "extend", extensions)

    def work(context: EngineContext, message: EngineMessage) -> None:
        for beat in range(1, 11):
            place.clock.advance(10.1)
            wait_until(lambda beat=beat: extensions.count >= beat, "a heartbeat")  # type: ignore[misc]
            wait_until(lambda: place.clock.is_settled, "the heartbeat of what keeps its twins out")
            place.ahead_seconds += 10.0
            free_what_the_dead_held(queue)
            assert queue.receive(1, 30) == []
        assert not context.lease_lost.is_set()

    bench.work = work
    message = queue.receive(1, 30)[0]
    assert bench.flow(queue).handle(message) is Outcome.SUCCEEDED
    assert len(bench.executions) == 1


@pytest.mark.parametrize("place", AZURE, indirect=True)
def test_a_message_whose_heartbeats_all_fail_is_given_up_as_lost(bench: Bench) -> None:
    bench.send()
    queue = bench.queue
    message = bench.next(queue)

    def work(context: EngineContext, message: EngineMessage) -> None:
        def is_lost() -> bool:
            bench.place.clock.advance(5)
            return context.lease_lost.is_set()

        wait_until(is_lost, "the message to be given up")

    bench.work = work
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(queue, "extend", Extensions(queue, 10_000, Unavailable("down")))
        assert bench.flow(queue).handle(message) is Outcome.LOST
    assert bench.history == []
    bench.work = lambda *given: None
    assert bench.deliver() is Outcome.SUCCEEDED


@pytest.mark.parametrize("place", AZURE, indirect=True)
def test_operations_of_one_engine_may_want_different_visibilities(place: Place) -> None:
    """The queue hands all messages out for the first one's time: heartbeats come in time for that."""
    bench = Bench(place, visibility_seconds=30.0)
    hf = place.application()
    options = {"queue": place.queue_name, **bench.options}
    hf.engine(ENGINE, operation="rotate", **{**options, "visibility_seconds": 30.0})(bench.handle)
    hf.engine(ENGINE, operation="notify", **{**options, "visibility_seconds": 3600.0})(bench.handle)
    queue = queue_of(hf, ENGINE)
    bench.send(operation="notify")
    extensions = Extensions(queue, 0, ValueError())

    def work(context: EngineContext, message: EngineMessage) -> None:
        place.clock.advance(10.1)
        wait_until(lambda: extensions.count >= 1, "a heartbeat")

    bench.work = work
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(queue, "extend", extensions)
        assert bench.flow(queue, None, hf).handle(bench.next(queue)) is Outcome.SUCCEEDED


def test_a_handler_can_keep_its_message_by_itself(bench: Bench) -> None:
    bench.work = lambda context, message: context.heartbeat()
    bench.send()
    assert bench.deliver() is Outcome.SUCCEEDED


@pytest.mark.parametrize("place", AZURE, indirect=True)
def test_a_system_without_threads_does_not_end_the_worker(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(place, max_retry_attempts=1000)
    bench.send()
    stop, worker = worker_of(bench)
    refused: list[str] = []
    start = threading.Thread.start

    def refuse_once(thread: threading.Thread) -> None:
        if thread.name.endswith("-message") and not refused:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    def has_succeeded() -> bool:
        if not bench.executions:
            bench.place.let_time_pass(1.0)  # so that the message comes again
        return "Succeeded" in bench.statuses

    monkeypatch.setattr(threading.Thread, "start", refuse_once)
    with running(bench, stop, worker) as finished:
        wait_until(lambda: refused, "a thread that does not start")
        wait_until(has_succeeded, "the message, come again", 60)
    assert finished == [True]
