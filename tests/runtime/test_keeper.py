"""One keeper for everything a process holds: a write that hangs is a loss of its own, and nobody else's."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime

import pytest

from holdfast.core.clock import SystemClock
from holdfast.core.renewed import Renewed
from holdfast.engines.queue_delivery import KeptInvisible
from holdfast.engines.queues.protocol import EngineQueue, Received
from holdfast.lease.documents import ETag, Written
from holdfast.lease.store import StateStore
from holdfast.lease.stores.memory import MemoryDocumentStore
from holdfast.runtime.keeper import Keeper, Kept, keeping
from tests.components.processes import wait_until


class SilentStore(MemoryDocumentStore):
    """Takes every replacement once it is silent, and answers none until it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.is_silent = False
        self.answer = threading.Event()

    def replace(self, name: str, content: bytes, if_match: ETag) -> Written:
        if self.is_silent:
            self.answer.wait(60)
        return super().replace(name, content, if_match)


@pytest.fixture
def silent() -> Iterator[SilentStore]:
    store = SilentStore()
    yield store
    store.answer.set()


def store_of(documents: MemoryDocumentStore) -> StateStore:
    return StateStore(documents, app_name="shop", skew_margin_seconds=0.05)


def beats_beside_a_silent_store(silent: SilentStore) -> tuple[bool, bool]:
    """Return whether the lease in a silent store and the one in a store that answers were lost."""
    clock = SystemClock()
    hanging = store_of(silent).acquire("orders", ttl_seconds=0.6)
    silent.is_silent = True
    healthy = store_of(MemoryDocumentStore()).acquire("orders", ttl_seconds=2.0)
    with keeping(hanging, clock), keeping(healthy, clock):
        assert hanging.lost.wait(30), "a store that never answers kept us believing"
        started = clock.monotonic()
        wait_until(
            lambda: healthy.lost.is_set() or clock.monotonic() - started > 3.0, "longer than the other lease lives"
        )
        return hanging.lost.is_set(), healthy.lost.is_set()


def test_a_write_that_hangs_loses_its_own_lease_and_nobody_elses(silent: SilentStore) -> None:
    assert beats_beside_a_silent_store(silent) == (True, False)


def test_with_one_thread_for_all_beats_the_other_lease_is_lost(
    silent: SilentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted bug: nobody takes over from the thread that waits for an answer."""
    relieve = Keeper._see_that_someone_beats

    def once(keeper: Keeper, kept: list[Kept]) -> float:
        return relieve(keeper, kept) if keeper._beater is None else 0.05

    monkeypatch.setattr(Keeper, "_see_that_someone_beats", once)
    monkeypatch.setattr("holdfast.runtime.keeper._of_process", Keeper(SystemClock()))
    assert beats_beside_a_silent_store(silent) == (True, True)


def test_any_number_of_leases_is_kept_by_two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.runtime.keeper._of_process", Keeper(SystemClock()))
    before = set(threading.enumerate())
    store, clock = store_of(MemoryDocumentStore()), SystemClock()
    leases = [store.acquire(f"orders-{number}", ttl_seconds=0.6) for number in range(30)]
    with ExitStack() as held:
        for lease in leases:
            held.enter_context(keeping(lease, clock))
        started = clock.monotonic()
        wait_until(lambda: clock.monotonic() - started > 1.5, "more than two leases")
        names = [thread.name for thread in set(threading.enumerate()) - before]
        assert not any(lease.lost.is_set() for lease in leases)
    assert sorted(names) == ["holdfast-beats", "holdfast-keeper"]


class Ending(Renewed):
    """Something whose first extension ends the thread that makes it."""

    def __init__(self) -> None:
        super().__init__(SystemClock(), 0.6)
        self.has_ended = False

    def heartbeat(self, *, wait_seconds: float) -> None:
        if not self.has_ended:
            self.has_ended = True
            raise SystemExit("planted")


def test_a_thread_of_beats_that_died_is_told_of_although_another_takes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("threading.excepthook", lambda arguments: None)
    keeper = Keeper(SystemClock())
    monkeypatch.setattr("holdfast.runtime.keeper._of_process", keeper)
    lease = store_of(MemoryDocumentStore()).acquire("orders", ttl_seconds=0.6)
    with keeping(lease, SystemClock()):
        assert keeper.is_alive
        with keeping(Ending(), SystemClock()):
            wait_until(lambda: not keeper.is_alive, "the thread to die")
        assert not lease.lost.wait(1.5), "nobody took over"
        assert not keeper.is_alive


class SilentQueue:
    """A queue that takes the extension of a message and never answers."""

    name = "mail-queue"

    def __init__(self) -> None:
        self.asked, self.answer = threading.Event(), threading.Event()

    def extend(self, message: Received, visibility_seconds: float) -> Received:
        self.asked.set()
        self.answer.wait(60)
        return message


def test_a_queue_that_never_answers_loses_the_message_by_the_clock() -> None:
    queue = SilentQueue()
    message = Received(id="m1", body="{}", dequeue_count=1, receipt="r", inserted_at=datetime.now(UTC))
    held = KeptInvisible(as_queue(queue), message, 0.5, SystemClock())
    told = threading.Event()
    held.when_lost(told.set)
    with keeping(held, SystemClock()):
        assert queue.asked.wait(30)
        assert told.wait(30), "the message is still believed in"
    queue.answer.set()


def as_queue(queue: SilentQueue) -> EngineQueue:
    return queue  # type: ignore[return-value]  # as much of it as a message's lease uses


FORK = """
import os, threading
from holdfast.core.clock import SystemClock
from holdfast.runtime.keeper import keeping
from holdfast.lease.store import StateStore
from holdfast.lease.stores.memory import MemoryDocumentStore

def lease(name):
    return StateStore(MemoryDocumentStore(), app_name="shop", skew_margin_seconds=0.05).acquire(name, ttl_seconds=0.5)

clock = SystemClock()
parents = lease("parent")
with keeping(parents, clock):
    child = os.fork()
    own = lease("own")
    with keeping(own, clock):
        assert not own.lost.wait(1.5), "the lease was not kept"
    if child == 0:
        os._exit(0)
    assert not parents.lost.is_set()
    assert os.waitpid(child, 0)[1] == 0, "the child's lease was not kept"
"""


def test_a_forked_process_keeps_its_own_leases() -> None:
    ended = subprocess.run([sys.executable, "-W", "ignore", "-c", FORK], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
