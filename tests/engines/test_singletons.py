"""Singletons: one execution at a time [ENGINE-6], a 409 for the others that is not counted [ENGINE-3].

A holder that wakes up late can change nothing.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from holdfast.core.errors import AlreadyRunning, RegistryLocked
from holdfast.engines.context import EngineContext
from holdfast.engines.messages import EngineMessage
from holdfast.engines.operations.protocol import HubUnavailable
from holdfast.engines.queues.protocol import EngineQueue, Received
from holdfast.engines.runner import Outcome
from holdfast.lease.documents import DocumentStore
from tests.components.processes import PythonWorker, wait_until
from tests.engines.driving import Killed, queue_of
from tests.engines.places import ENGINE, Bench, MortalStore, Place

STARTS = 50
AZURE = [pytest.param("azure", marks=pytest.mark.component("azurite"))]


def test_of_50_concurrent_starts_one_runs_and_49_get_409(singleton: Bench) -> None:
    bench = singleton
    for number in range(STARTS):
        bench.send(f"m-{number}", f"c-{number}")
    queue = bench.queue
    received = [message for _ in range(STARTS) for message in queue.receive(1, 30)]
    assert len(received) == STARTS
    outcomes: list[Outcome] = []
    together = threading.Barrier(STARTS)

    def wait_for_the_others(context: EngineContext, message: EngineMessage) -> None:
        wait_until(lambda: len(outcomes) == STARTS - 1, "49 conflicts", 120)

    def start(message: Received) -> None:
        flow = bench.flow(queue)
        together.wait(60)
        outcomes.append(flow.handle(message))

    bench.work = wait_for_the_others
    with ThreadPoolExecutor(STARTS) as threads:
        for done in [threads.submit(start, message) for message in received]:
            done.result(180)
    assert Counter(outcomes) == {Outcome.SUCCEEDED: 1, Outcome.CONFLICT: STARTS - 1}
    assert len(bench.executions) == 1
    bench.work = lambda *given: None
    bench.to_the_end(most=STARTS)
    assert Counter(message.message_id for message in bench.executions) == {f"m-{n}": 1 for n in range(STARTS)}
    assert {context.attempt for context in bench.contexts} == {1}, "a 409 is not an attempt"
    assert [bench.ends(f"c-{number}") for number in range(STARTS)] == [["Succeeded"]] * STARTS


class Elsewhere:
    """Handles the next message in the middle of an execution, as another worker would."""

    def __init__(self, bench: Bench) -> None:
        self.outcomes: list[Outcome] = []
        self._bench = bench

    def __call__(self, context: EngineContext, message: EngineMessage) -> None:
        self._bench.work = lambda *given: None
        queue = self._bench.queue
        for other in queue.receive(1, 30):
            self.outcomes.append(self._bench.flow(queue).handle(other))


@pytest.mark.parametrize(
    ("options", "second", "outcome"),
    [
        ({"locks_registry": False}, "i-2", Outcome.SUCCEEDED),
        ({"locks_registry": False}, "i-1", Outcome.CONFLICT),
        ({"locks_registry": True}, "i-2", Outcome.SUCCEEDED),
        ({"locks_registry": "application"}, "i-2", Outcome.CONFLICT),
    ],
    ids=["other instance", "same instance", "other instance, its registry", "other instance, the application's"],
)
def test_13_9_instances_run_side_by_side_unless_they_lock_the_applications_registry(
    place: Place, options: dict[str, Any], second: str, outcome: Outcome
) -> None:
    bench = Bench(place, singleton=True, **options)
    bench.send("m-1", "c-1", instanceId="i-1")
    bench.send("m-2", "c-2", instanceId=second)
    bench.work = elsewhere = Elsewhere(bench)
    assert bench.deliver() is Outcome.SUCCEEDED
    assert elsewhere.outcomes == [outcome]
    bench.to_the_end()
    assert (bench.ends("c-1"), bench.ends("c-2")) == (["Succeeded"], ["Succeeded"])


def test_a_handler_that_fails_releases_lock_and_lease(singleton: Bench) -> None:
    singleton.fails = lambda context: True
    singleton.send("m-1", "c-1")
    assert singleton.deliver() is Outcome.RETRIED
    singleton.hf.registry.require_free("another")
    singleton.fails = lambda context: context.message_id == "m-1"
    queue = singleton.queue
    held = singleton.next(queue)  # the first is with another worker
    singleton.send("m-2", "c-2")
    assert singleton.deliver() is Outcome.SUCCEEDED
    assert queue.put_back(held, 0.0, "back")


def test_the_lock_of_a_dead_holder_runs_out(place: Place) -> None:
    bench = Bench(place, singleton=True, lock_seconds=600)
    bench.send()
    assert bench.die_at("alone")
    bench.place.clock.advance(599)
    with pytest.raises(RegistryLocked) as refused:
        bench.hf.registry.require_free("another")
    assert refused.value.holder_job_id.startswith("hmac-")
    bench.place.clock.advance(2 + (bench.place.documents().skew_margin_seconds or 0))
    bench.hf.registry.require_free("another")


def test_a_message_whose_worker_died_takes_its_lock_up_again_at_once(place: Place) -> None:
    bench = Bench(place, singleton=True, lock_seconds=3600)
    bench.send()
    assert bench.die_at("alone")
    assert bench.deliver() is Outcome.SUCCEEDED, "61 s later, of 3600"


def test_a_dead_letter_frees_the_lock_of_its_dead_worker(place: Place) -> None:
    bench = Bench(place, singleton=True, lock_seconds=3600, max_retry_attempts=2)
    bench.send()
    for _ in range(1 if place.is_azure else 2):  # in a database the first death is not charged
        assert bench.die_at("alone")
    assert bench.deliver() is Outcome.DEAD_LETTERED
    bench.hf.registry.require_free("another")


@pytest.mark.parametrize("place", AZURE, indirect=True)
def test_a_message_that_is_found_done_frees_the_lock_of_its_dead_worker(place: Place) -> None:
    """The worker dies between the history and the release: nobody but this message will ever free the lock."""
    bench = Bench(place, singleton=True, lock_seconds=3600)
    bench.send()
    assert bench.die_at("recorded")
    with pytest.raises(RegistryLocked):
        bench.hf.registry.require_free("another")
    assert bench.deliver() is Outcome.ALREADY_DONE
    bench.hf.registry.require_free("another")


# Twins of a message that was put back


@pytest.mark.parametrize("place", AZURE, indirect=True)
@pytest.mark.parametrize("killed_at", ["send", "delete"])
def test_a_worker_killed_while_it_puts_a_message_back_leaves_one_end(
    place: Place, killed_at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two messages may be left, the original and its copy: one of them may die only if the other has not succeeded."""
    bench = Bench(place, singleton=True, lock_seconds=60)
    bench.send()
    put_back_and_die(bench, killed_at, monkeypatch)
    assert len(bench.executions) == 0
    bench.fails = lambda context: len(bench.executions) <= 3
    bench.to_the_end()
    assert len(bench.ends()) == 1, "never both, never neither"
    assert bench.is_empty


@pytest.mark.parametrize("place", AZURE, indirect=True)
def test_twins_of_a_message_that_was_put_back_do_not_die_beside_each_other(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(place, singleton=True, lock_seconds=60)
    bench.send()
    put_back_and_die(bench, "delete", monkeypatch)
    bench.place.let_time_pass()
    buried: list[Outcome] = []

    def meanwhile(context: EngineContext, message: EngineMessage) -> None:
        bench.work = lambda *given: None
        queue = bench.queue
        for other in queue.receive(1, 30):
            buried.append(bench.flow(queue).handle(replace(other, dequeue_count=3)))

    bench.work = meanwhile
    queue = bench.queue
    [first] = queue.receive(1, 30)
    assert bench.flow(queue).handle(first) is Outcome.SUCCEEDED
    assert buried == [Outcome.CONFLICT]
    bench.to_the_end()
    assert bench.ends() == ["Succeeded"]
    assert len(bench.executions) == 1


def put_back_and_die(bench: Bench, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a message meet a 409 in a worker that dies while it puts the message back."""
    bench.hf.registry.acquire("another", duration_seconds=50)
    queue = bench.queue
    message = first_of(queue)

    def die(*given: object, **named: object) -> None:
        raise Killed

    monkeypatch.setattr(queue, step, die)
    with pytest.raises(Killed):
        bench.flow(queue).handle(message)
    bench.place.let_time_pass()


def first_of(queue: EngineQueue) -> Received:
    [message] = wait_until(lambda: queue.receive(1, 30), "the message")
    return message


@pytest.mark.parametrize("place", AZURE, indirect=True)
def test_a_worker_that_lost_its_message_puts_no_copy_back(bench: Bench) -> None:
    bench.send()
    queue = bench.queue
    lost = bench.next(queue)
    bench.place.let_time_pass()
    again = bench.next(queue)
    assert not queue.put_back(lost, 0.0, "late")
    assert queue.delete(again)
    assert bench.is_empty


# Holders that sleep


class PausedStore(MortalStore):
    """The documents as a process sees them that can be paused: its calls wait until it goes on."""

    def __init__(self, inner: DocumentStore) -> None:
        super().__init__(inner)
        self.goes_on = threading.Event()
        self.goes_on.set()

    def _alive(self) -> DocumentStore:
        assert self.goes_on.wait(60)
        return super()._alive()


def test_a_paused_holder_that_wakes_up_late_can_change_nothing(singleton: Bench) -> None:
    bench = singleton
    state = PausedStore(bench.place.documents())
    asleep, woken = threading.Event(), threading.Event()
    refused: list[Exception] = []

    def work(context: EngineContext, message: EngineMessage) -> None:
        if asleep.is_set():
            context.registry.change({"by": "the second"})
            return
        context.registry.change({"by": "the first"})
        asleep.set()
        assert woken.wait(60)
        try:
            context.registry.change({"by": "the late one"})
        except RegistryLocked as error:
            refused.append(error)
            raise

    bench.work = work
    bench.send()
    paused = bench.process(state)
    queue = queue_of(paused, ENGINE)
    message = bench.next(queue)
    with ThreadPoolExecutor(1) as thread, pytest.MonkeyPatch.context() as patched:
        patched.setattr(queue, "extend", _when(state.goes_on, queue.extend))
        late = thread.submit(bench.flow(queue, None, paused).handle, message)
        assert asleep.wait(60)
        state.goes_on.clear()
        bench.place.let_time_pass()
        assert bench.deliver() is Outcome.SUCCEEDED
        state.goes_on.set()
        woken.set()
        assert late.result(60) is Outcome.LOST
    assert len(refused) == 1
    view = bench.hf.registry.read()
    assert view is not None
    assert view.state["by"] == "the second"
    assert bench.statuses == ["Succeeded"]
    assert bench.is_empty


def _when(event: threading.Event, call: Callable[..., Received]) -> Callable[..., Received]:
    def extend(*given: Any) -> Received:
        assert event.wait(60)
        return call(*given)

    return extend


HOLDER = """
import sys, threading
from holdfast import Holdfast
hf = Holdfast(sys.argv[1], app_name=sys.argv[2])
with hf.registry.locked("sleeper", duration_seconds=2) as held:
    held.change({"by": "sleeper"})
    print("asleep", flush=True)
    while True:
        try:
            held.change({"by": "the late sleeper"})
        except Exception as error:
            print("refused", type(error).__name__, flush=True)
            break
        print("changed", flush=True)
        threading.Event().wait(0.05)
"""


@pytest.mark.parametrize("place", ["sqlite", "postgres"], indirect=True)
def test_a_stopped_process_that_wakes_up_late_can_change_nothing(place: Place) -> None:
    """SIGSTOP in the middle of the lock's time, and SIGCONT after another job has changed the registry."""
    registry = Bench(place).hf.registry.over(place.documents())
    with PythonWorker("-c", HOLDER, place.url, place.app_name) as worker:
        worker.wait_for_line("changed")
        worker.suspend()

        def taken() -> bool:
            try:
                registry.acquire("successor", duration_seconds=60)
            except RegistryLocked:
                return False
            return True

        wait_until(taken, "the stopped holder's lock to run out")
        registry.change("successor", {"by": "successor"})
        worker.resume()
        assert worker.wait_for_line("refused") == "refused RegistryLocked"
    view = registry.read()
    assert view is not None
    assert (view.state["by"], view.lock.job_id) == ("successor", "successor")


@pytest.mark.parametrize("refusal", [AlreadyRunning("another message is at work"), HubUnavailable("it is down")])
def test_an_operation_that_cannot_be_started_now_is_not_counted(bench: Bench, refusal: Exception) -> None:
    bench.send()

    class Busy:
        def run(self, context: EngineContext, message: EngineMessage, lease: object) -> object:
            bench.contexts.append(context)
            raise refusal

    definition = bench.hf.engines.declared["hmac"]["rotate"]
    usual, definition.operation = definition.operation, Busy()
    assert bench.deliver() is Outcome.CONFLICT
    definition.operation = usual
    assert bench.deliver() is Outcome.SUCCEEDED
    assert {context.attempt for context in bench.contexts} == {1}
    assert bench.statuses == ["Succeeded"]


def test_a_409_leaves_the_message_as_it_was(singleton: Bench) -> None:
    singleton.hf.registry.instance("i-1").acquire("another", duration_seconds=50)
    singleton.send(tag="kept", instanceId="i-1")
    queue = singleton.queue
    before = singleton.next(queue)
    assert singleton.flow(queue).handle(before) is Outcome.CONFLICT
    after = singleton.next(queue)
    told = ("messageId", "correlationId", "instanceId", "payload", "tag")
    assert [json.loads(after.body)[name] for name in told] == [json.loads(before.body)[name] for name in told]
    assert (after.dequeue_count, after.inserted_at) == (before.dequeue_count, before.inserted_at)
    assert singleton.history == []


def test_an_operation_whose_lock_is_taken_away_fails_and_says_so(singleton: Bench) -> None:
    def lose_the_lock(context: EngineContext, message: EngineMessage) -> None:
        view = singleton.hf.registry.read()
        assert view is not None
        singleton.hf.registry.force_unlock(view.lock)
        context.registry.change({"key": 7})

    singleton.work = lose_the_lock
    singleton.send()
    assert singleton.deliver() is Outcome.RETRIED
    [failed] = singleton.history
    assert (failed.error or "").startswith("RegistryLocked: ")
    singleton.work = lambda *given: None
    assert singleton.to_the_end() == [Outcome.SUCCEEDED]
