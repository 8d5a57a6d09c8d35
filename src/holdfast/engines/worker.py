"""Runs engines until told to stop: receives, takes each message through its flow, drains."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..core.clock import Clock
from ..core.retry import RetryPolicy, doubling
from .flow import EngineFlow
from .queues.embedded import EmbeddedQueue
from .queues.protocol import EngineQueue, Received
from .telemetry import EngineTelemetry

_LOOK_AROUND_SECONDS = 0.2
_LEAST_REST_SECONDS = 0.02
_LONGEST_REST_SECONDS = 10.0
_AFTER_ERRORS = RetryPolicy(max_retries=0, base_delay_seconds=0.5, max_delay_seconds=30.0)


@dataclass(frozen=True, slots=True)
class EngineWork:
    """An engine at work: its queue, its flow, and how much of it at once."""

    name: str
    queue: EngineQueue
    flow: EngineFlow
    concurrency: int
    visibility_seconds: float
    poll_seconds: float


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
        self._wakes = {work.name: threading.Event() for work in works}
        self._running: set[threading.Thread] = set()

    def run(self) -> bool:
        """Run until ``stop`` is set, then until running operations have finished."""
        receivers = [self._thread(f"engine-{work.name}", self._receive_for_ever, work) for work in self._works]
        for thread in receivers:
            thread.start()
        for thread in receivers:  # they start no message any more once they have ended
            thread.join()
        for thread in list(self._running):
            thread.join()
        return True

    def _receive_for_ever(self, work: EngineWork) -> None:
        wake = self._wakes[work.name]
        news = work.queue.wake_ups(self._clock, wake.set) if isinstance(work.queue, EmbeddedQueue) else None
        if news is not None:
            news.start()
        try:
            self._receive(work, wake)
        finally:
            if news is not None:
                news.stop()

    def _rest_seconds(self, work: EngineWork, idle: int) -> float:
        """Return how long to rest: longer and longer where new messages wake us, but never past one that is due."""
        if not isinstance(work.queue, EmbeddedQueue) or not work.queue.notifies:
            return work.poll_seconds
        longest = doubling(work.poll_seconds, _LONGEST_REST_SECONDS, idle)
        due_in = work.queue.seconds_to_next()
        return longest if due_in is None else min(longest, max(_LEAST_REST_SECONDS, due_in))

    def _receive(self, work: EngineWork, wake: threading.Event) -> None:
        failures_in_a_row = idle = 0
        while not self._stop.is_set():
            wake.clear()
            slots = self._take_slots(work)
            try:
                received = work.queue.receive(slots, work.visibility_seconds) if slots else []
                failures_in_a_row = 0
            except Exception as error:
                self._free_slots(work, slots)
                failures_in_a_row += 1
                self._telemetry.broke(work.name, error)
                self._clock.wait(self._stop, _AFTER_ERRORS.delay_for_attempt(failures_in_a_row - 1))
                continue
            self._free_slots(work, slots - len(received))
            for message in received:
                failures_in_a_row += not self._is_begun(work, message)
            idle = 0 if received else idle + 1
            if slots and not received:
                self._clock.wait(wake, self._rest_seconds(work, idle))

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
        try:
            with self._telemetry.delivery(work.name) as delivery:
                delivery.outcome = work.flow.handle(message)
        except Exception as error:  # the message comes again when its time has passed
            self._telemetry.broke(work.name, error)
            self._clock.wait(self._stop, _AFTER_ERRORS.base_delay_seconds)
        finally:
            self._free_slots(work, 1)

    def stopping(self) -> None:
        """End the rests of those who receive."""
        for wake in self._wakes.values():
            wake.set()

    def give_up(self) -> None:
        """Let what did not finish come again at once, uncounted."""
        for work in self._works:
            work.flow.give_back("the worker stopped")

    def _thread(self, name: str, target: Callable[..., None], *arguments: object) -> threading.Thread:
        """Return a thread that does not keep the process alive: what outlives the drain is given back."""
        return threading.Thread(target=target, args=arguments, name=f"holdfast-{name}", daemon=True)
