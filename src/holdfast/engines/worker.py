"""Runs engines whose queues are not in the database: receives, takes each message through its flow, drains."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..core.clock import Clock
from ..core.errors import DbError, WorkerDiedError
from ..core.retry import RetryPolicy
from ..runtime.event_loop import handlers_loop
from ..runtime.leased_part import WHILE_WRONG, WRONG
from ..runtime.supervisor import watch
from .queue_delivery import QueuedDelivery
from .queues.protocol import EngineQueue, Received
from .runner import EngineFlow
from .store import TableRecords
from .telemetry import EngineTelemetry

_LOOK_AROUND_SECONDS = 0.2
_AFTER_ERRORS = RetryPolicy(max_retries=0, base_delay_seconds=0.5, max_delay_seconds=30.0)


@dataclass(frozen=True, slots=True)
class EngineWork:
    """An engine at work: its queue, its flow, and how much of it at once."""

    name: str
    queue: EngineQueue
    flow: EngineFlow
    records: TableRecords
    concurrency: int
    lease_seconds: float
    poll_seconds: float
    check: Callable[[], object]
    """Looks whether it can run, and raises what is wrong."""
    fault: DbError | None = None
    """What is known to be wrong with it already."""


class EngineWorker:
    """Runs several engines in one process: a thread that receives for each engine, and one for each message."""

    title = "The engines' worker"

    def __init__(
        self,
        works: Sequence[EngineWork],
        stop: threading.Event,
        *,
        telemetry: EngineTelemetry,
        clock: Clock,
    ) -> None:
        self._works = works
        self._stop = stop
        self._telemetry = telemetry
        self._clock = clock
        self._slots = {work.name: threading.Semaphore(work.concurrency) for work in works}
        self._running: set[threading.Thread] = set()
        self._deliveries: set[QueuedDelivery] = set()
        self._faults = {work.name: work.fault for work in works if work.fault is not None}

    def run(self) -> bool:
        """Run until ``stop`` is set, then until running operations have finished.

        Raises:
            WorkerDiedError: a thread that receives died; the others were stopped.
        """
        receivers = [self._thread(f"engine-{work.name}", self._receive_for_ever, work) for work in self._works]
        for thread in receivers:
            thread.start()
        parts = {work.name: thread.is_alive for work, thread in zip(self._works, receivers, strict=True)}
        dead = watch(parts, self._stop, self._clock)
        self._stop.set()
        for thread in receivers:  # they start no message any more once they have ended
            thread.join()
        for thread in list(self._running):
            thread.join()
        if dead:
            raise WorkerDiedError(f"it has lost what receives for {' and '.join(dead)}", has_drained=True)
        return True

    def _receive_for_ever(self, work: EngineWork) -> None:
        failures_in_a_row = looks = 0
        while not self._stop.is_set():
            if work.name in self._faults:
                self._clock.wait(self._stop, WHILE_WRONG.delay_for_attempt(looks))
                looks = 0 if self._is_mended(work) else looks + 1
                continue
            if work.flow.is_async and handlers_loop().is_stuck:
                self._clock.wait(self._stop, _LOOK_AROUND_SECONDS)
                continue
            slots = self._take_slots(work)
            try:
                received = work.queue.receive(slots, work.lease_seconds) if slots else []
                failures_in_a_row = 0
            except WRONG as error:
                self._free_slots(work, slots)
                self._note_fault(work, error)
                continue
            except Exception as error:
                self._free_slots(work, slots)
                failures_in_a_row += 1
                self._telemetry.broke(work.name, error)
                self._clock.wait(self._stop, _AFTER_ERRORS.delay_for_attempt(failures_in_a_row - 1))
                continue
            self._free_slots(work, slots - len(received))
            for message in received:
                failures_in_a_row += not self._is_begun(work, message)
            if slots and not received:
                self._clock.wait(self._stop, work.poll_seconds)

    def _is_mended(self, work: EngineWork) -> bool:
        """Look again at what was wrong: nothing is received meanwhile, for each delivery would be counted."""
        try:
            if not self._stop.is_set():
                work.check()
        except DbError as error:
            self._note_fault(work, error)
            return False
        self._faults.pop(work.name, None)
        self._telemetry.mended(work.name)
        return True

    def _note_fault(self, work: EngineWork, error: DbError) -> None:
        if str(self._faults.get(work.name)) != str(error):
            self._telemetry.wrong(work.name, error)
        self._faults[work.name] = error

    def _take_slots(self, work: EngineWork) -> int:
        """Return how many messages may be begun now; wait a moment for the first."""
        slots = self._slots[work.name]
        if not slots.acquire(timeout=_LOOK_AROUND_SECONDS):
            return 0
        taken = 1
        while taken < work.concurrency and slots.acquire(blocking=False):
            taken += 1
        return taken

    def _free_slots(self, work: EngineWork, count: int) -> None:
        if count > 0:
            self._slots[work.name].release(count)

    def _is_begun(self, work: EngineWork, message: Received) -> bool:
        """Begin a message; return whether that was possible. If not, it comes again when its time has passed."""
        thread = self._thread(f"engine-{work.name}-message", self._handle, work, message)
        try:
            thread.start()
        except RuntimeError as error:  # the system has no more threads
            self._free_slots(work, 1)
            self._telemetry.broke(work.name, error)
            return False
        self._running = {other for other in self._running if other.is_alive()} | {thread}
        return True

    def _handle(self, work: EngineWork, message: Received) -> None:
        delivery = QueuedDelivery(work.queue, message, work.records, self._clock, work.flow.reached)
        self._deliveries.add(delivery)
        try:
            with self._telemetry.delivery(work.name) as delivered:
                delivered.outcome = work.flow.handle(delivery)
        except WRONG as error:
            self._note_fault(work, error)
        except Exception as error:  # the message comes again when its time has passed
            self._telemetry.broke(work.name, error)
            self._clock.wait(self._stop, _AFTER_ERRORS.base_delay_seconds)
        finally:
            self._deliveries.discard(delivery)
            self._free_slots(work, 1)

    def stopping(self) -> None:
        """Nothing to do: the event is looked at."""

    def give_up(self) -> None:
        """Let what did not finish come again at once, uncounted."""
        for delivery in list(self._deliveries):
            delivery.give_back("the worker stopped")

    def _thread(self, name: str, target: Callable[..., None], *arguments: object) -> threading.Thread:
        """Return a thread that does not keep the process alive: what outlives the drain is given back."""
        return threading.Thread(target=target, args=arguments, name=f"holdfast-{name}", daemon=True)
