"""Jobs in the hands of this worker, and whether they still are."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

from ..runtime.transaction import HandlerTransaction
from .model import Claim, ClaimedJob, Settled

if TYPE_CHECKING:
    from .lanes import Lane
    from .runner import Execution

_events_lock = threading.Lock()
current_running: ContextVar[Running | None] = ContextVar("holdfast_running_job", default=None)


class Decoder(Protocol):
    """Turns a stored payload into a handler's arguments."""

    def decode(self, payload: str) -> dict[str, object]:
        """Return the arguments; raise ``PayloadError`` when they do not fit."""
        ...


class JobHandler(Protocol):
    """A handler as the worker needs it."""

    @property
    def topic(self) -> str:
        """Return the topic its jobs are in."""
        ...

    @property
    def operation(self) -> str:
        """Return the name its jobs are stored under."""
        ...

    @property
    def function(self) -> Callable[..., Any]:
        """Return what is called."""
        ...

    @property
    def is_async(self) -> bool:
        """Return whether it runs on the event loop."""
        ...

    @property
    def takes_context(self) -> bool:
        """Return whether its first argument is the context."""
        ...

    @property
    def max_seconds(self) -> float | None:
        """Return how long an attempt may run, None for as long as it takes."""
        ...

    @property
    def is_transactional(self) -> bool:
        """Return whether it has no effects but those in ``context.transaction``."""
        ...

    @property
    def codec(self) -> Decoder:
        """Return what reads its payloads."""
        ...

    @property
    def delivering(self) -> Delivering | None:
        """Return what takes its jobs to their end; None when the function is called and its end reported."""
        ...


class Delivering(Protocol):
    """Takes the jobs of a handler to their end in a way of its own, as the flow of engines does."""

    @property
    def concurrency(self) -> int:
        """Return how many of them run at once, whatever else runs."""
        ...

    @property
    def is_held_up(self) -> bool:
        """Return whether nothing of it can begin now, so that it is left to other workers."""
        ...

    def expect(self, jobs: Sequence[Running]) -> None:
        """Learn of jobs that were claimed and wait for their turn."""
        ...

    def deliver(self, running: Running, execution: Execution) -> None:
        """Run one, and end it through the execution: by a report, or in its transaction."""
        ...

    def report_ended(self, running: Running, reason: str) -> Settled:
        """Return the report for one that its worker leaves behind, and whose handler had ended its transaction."""
        ...


class Running:
    """One claimed job. Made for every job, so it is light: what few jobs need is there once it is set."""

    is_lost = False
    is_taken = False
    is_reported = False
    is_overdue = False
    is_abandoned = False
    begun_at: float | None = None
    excused_seconds = 0.0  # since its begin, in which it could not go on
    thread: threading.Thread | None = None
    cancel_reason: str | None = None
    locked_since: float | None = None
    stop_task: Callable[[], None] | None = None
    let_go: Callable[[], None] | None = None  # frees what it holds besides, when its worker leaves it behind
    on_gone: Callable[[], None] | None = None  # called when the worker holds it no more
    prepared: Any = None  # its payload as its handler has read it ahead
    transaction: HandlerTransaction | None = None
    _lost_event: threading.Event | None = None
    _cancel_event: threading.Event | None = None

    def __init__(self, job: ClaimedJob, handler: JobHandler, lane: Lane, now: float) -> None:
        self.job = job
        self.claim: Claim = job.claim
        self.handler = handler
        self.lane = lane
        self.extended_at = now
        self.started_at = now

    @property
    def lost_event(self) -> threading.Event:
        """Return the event that is set once the lease is lost."""
        with _events_lock:
            if self._lost_event is None:
                self._lost_event = threading.Event()
            if self.is_lost:
                self._lost_event.set()
            return self._lost_event

    @property
    def cancel_event(self) -> threading.Event:
        """Return the event that is set once someone cancelled the job."""
        with _events_lock:
            if self._cancel_event is None:
                self._cancel_event = threading.Event()
            if self.cancel_reason is not None:
                self._cancel_event.set()
            return self._cancel_event

    @property
    def has_live_thread(self) -> bool:
        """Return whether what runs the job, once it has begun, is alive: only then can it still end by itself."""
        return self.thread is None or self.thread.is_alive()

    def seconds_left(self, now: float) -> float | None:
        """Return how long it may still run, None for as long as it takes, or if it has not begun."""
        if self.handler.max_seconds is None or self.begun_at is None:
            return None
        return self.begun_at + self.excused_seconds + self.handler.max_seconds - now

    def begin(self, now: float) -> None:
        """Note that the handler begins, on this thread."""
        self.started_at = self.begun_at = now
        self.thread = threading.current_thread()

    def take_report(self) -> bool:
        """Return whether the caller is the first who wants to tell how the attempt ended: nobody else may then."""
        with _events_lock:
            is_first, self.is_reported = not self.is_reported, True
        return is_first

    def lose(self, *, is_certain: bool) -> None:
        """Note that the lease is, or may be, no longer ours, and stop what can be stopped.

        Only when it is certain, nothing is reported any more; else the database decides what a report is worth.
        """
        with _events_lock:
            self.is_lost = True
            self.is_taken = self.is_taken or is_certain
            event = self._lost_event
        if event is not None:
            event.set()
        self._stop()

    def cancel(self, reason: str) -> None:
        """Note that someone cancelled the job, and stop what can be stopped."""
        with _events_lock:
            self.cancel_reason = reason
            event = self._cancel_event
        if event is not None:
            event.set()
        self._stop()

    def _stop(self) -> None:
        if self.stop_task is not None:
            self.stop_task()


class InFlight:
    """Every job this worker holds, from its claim until its report was accepted."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[Claim, Running] = {}

    def __len__(self) -> int:
        return len(self._running)

    def add(self, jobs: Iterable[Running]) -> None:
        """Take jobs in."""
        with self._lock:
            for running in jobs:
                self._running[running.claim] = running
                running.lane.in_flight += 1

    def remove(self, claims: Iterable[Claim]) -> None:
        """Let go of jobs that have ended."""
        with self._lock:
            gone = [running for claim in claims if (running := self._running.pop(claim, None)) is not None]
            for running in gone:
                running.lane.in_flight -= 1
        for running in gone:
            if running.on_gone is not None:
                running.on_gone()

    def all(self) -> list[Running]:
        """Return what is held now."""
        with self._lock:
            return list(self._running.values())

    def get(self, claims: Sequence[Claim]) -> list[Running]:
        """Return those of the claims that are held."""
        with self._lock:
            return [self._running[claim] for claim in claims if claim in self._running]
