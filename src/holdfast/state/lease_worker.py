"""Runs work under leases until told to stop: keeps each lease between polls, stands by for other workers, drains.

One thread per lease. An error never ends it: it is logged, and the work is tried again with growing pauses.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

from ..core.clock import Clock, SystemClock
from ..core.errors import LeaseConflictError
from ..core.retry import RetryPolicy
from .lease import HeldLease

_log = logging.getLogger("holdfast.worker")
_RELEASE_SECONDS = 1.0
_LOOK_AROUND_SECONDS = 0.2
_AFTER_ERRORS = RetryPolicy(max_retries=0, base_delay_seconds=0.5, max_delay_seconds=30.0)


class StepOutcome(Protocol):
    """What a step has done."""

    @property
    def delivered(self) -> int:
        """Return how much it has done."""
        ...

    @property
    def caught_up(self) -> bool:
        """Return whether there is nothing more to do now."""
        ...


class LeasedRunner(Protocol):
    """Work under one lease."""

    @property
    def title(self) -> str:
        """Return what people call it."""
        ...

    def leased(self) -> AbstractContextManager[HeldLease]:
        """Hold the lease, with a heartbeat beside whatever runs inside; ``LeaseConflictError`` when that cannot be."""
        ...

    def process_batch(self, lease: HeldLease) -> StepOutcome:
        """Do one step under the lease."""
        ...


@dataclass(frozen=True, slots=True)
class LeasedWork:
    """Work in a worker: what runs it, and how long it rests when there is nothing to do."""

    runner: LeasedRunner
    poll_seconds: float = 1.0


@dataclass(slots=True)
class _Delivered:
    """How many batches one hold of the lease has seen through."""

    batches: int = 0


class LeaseWorker:
    """Runs several kinds of leased work in one process."""

    def __init__(
        self,
        works: Sequence[LeasedWork],
        stop: threading.Event,
        *,
        clock: Clock | None = None,
        drain_seconds: float = 30.0,
    ) -> None:
        self._works = works
        self._stop = stop
        self._clock = clock or SystemClock()
        self._drain_seconds = drain_seconds
        self._lock = threading.Lock()
        self._held: dict[str, HeldLease] = {}

    def run(self) -> bool:
        """Run until ``stop`` is set, then let running handlers finish; return whether they all did in time.

        No batch is started after ``stop``. The lease of a handler that outlives the drain time is released, so that
        another worker can take over at once; what that handler still does can no longer be committed.
        """
        threads = [
            threading.Thread(target=self._keep_running, args=(work,), name=f"holdfast-{work.runner.title}", daemon=True)
            for work in self._works
        ]
        for thread in threads:
            thread.start()
        while not self._clock.wait(self._stop, _LOOK_AROUND_SECONDS):
            pass  # a signal that another thread received is handled when this one wakes
        deadline = self._clock.monotonic() + self._drain_seconds
        for thread in threads:
            thread.join(timeout=max(0.0, deadline - self._clock.monotonic()))
        return not self._release_what_is_left()

    def _release_what_is_left(self) -> bool:
        """Give up the leases of handlers that did not finish; return whether there were any."""
        with self._lock:
            left = list(self._held.values())
        for lease in left:
            with suppress(Exception):  # the lease frees itself when it runs out
                lease.release(wait_seconds=_RELEASE_SECONDS)
        return bool(left)

    def _keep_running(self, work: LeasedWork) -> None:
        failures_in_a_row = 0
        is_standing_by = False
        while not self._stop.is_set():
            delivered = _Delivered()
            try:
                self._run_leased(work, delivered)
                is_standing_by = False
            except LeaseConflictError as held:
                if not is_standing_by:
                    _log.info("%s stands by. %s", work.runner.title, held)
                failures_in_a_row, is_standing_by = 0, True
                self._clock.wait(self._stop, work.poll_seconds)
            except BaseException:  # logged by the runner; the work outlives every error
                is_standing_by = False
                failures_in_a_row = 0 if delivered.batches else failures_in_a_row + 1
                self._clock.wait(self._stop, _AFTER_ERRORS.delay_for_attempt(failures_in_a_row))

    def _run_leased(self, work: LeasedWork, delivered: _Delivered) -> None:
        with work.runner.leased() as lease, self._remembered(work.runner.title, lease):
            _log.info("%s holds its lease with token %d", work.runner.title, lease.fencing_token)
            while not self._stop.is_set() and not lease.lost.is_set():
                outcome = work.runner.process_batch(lease)
                delivered.batches += bool(outcome.delivered)
                if outcome.caught_up:
                    self._clock.wait(self._stop, work.poll_seconds)

    @contextmanager
    def _remembered(self, name: str, lease: HeldLease) -> Iterator[None]:
        with self._lock:
            self._held[name] = lease
        try:
            yield
        finally:
            with self._lock:
                self._held.pop(name, None)
