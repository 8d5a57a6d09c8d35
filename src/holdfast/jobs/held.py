"""The jobs that a worker holds, kept alive by the keeper of its process: one statement extends every lease."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

from ..core.clock import Clock
from ..runtime.keeper import Kept, keeper_on
from .model import WorkerId
from .running import InFlight, Running
from .stores.protocol import WorkerStore
from .telemetry import WorkerTelemetry

_USABLE_LEASE = 0.9


class HeldJobs:
    """All jobs in flight, as one thing that the keeper extends. Each is lost alone, so ``lost`` is never set.

    Args:
        store: the queue, on connections that handlers do not use.
        beat_seconds: the interval between beats; a lease that needs more of them shortens it.
        is_live: whether a job can still make progress here; nobody beats for one whose thread has died.
    """

    is_protected = False

    def __init__(
        self,
        store: WorkerStore,
        worker: WorkerId,
        in_flight: InFlight,
        telemetry: WorkerTelemetry,
        clock: Clock,
        *,
        beat_seconds: float,
        is_live: Callable[[Running], bool] = lambda running: True,
    ) -> None:
        self._store = store
        self._worker = worker
        self._in_flight = in_flight
        self._telemetry = telemetry
        self._clock = clock
        self._is_live = is_live
        self._renewed_at = clock.monotonic()
        self._is_urgent = False
        self.lost = threading.Event()
        self.ttl_seconds = 3 * beat_seconds
        self._keeper = keeper_on(clock)
        self._kept = Kept(self)

    def start(self) -> None:
        """Begin to be kept."""
        self._keeper.take(self._kept)

    def stop(self) -> None:
        """Be kept no more: leases run out from now on."""
        self._keeper.let_go(self._kept)

    @property
    def is_alive(self) -> bool:
        """Return whether somebody beats and looks at the clock."""
        return self._keeper.is_alive

    def beat_now(self) -> None:
        """Do not wait for the next interval: someone may have cancelled a job."""
        self._is_urgent = True
        self._keeper.look_again(self._kept)

    def expect_lease(self, seconds: float) -> None:
        """Beat often enough for a lease this short."""
        if seconds < self.ttl_seconds:
            self.ttl_seconds = seconds
            self._keeper.look_again(self._kept)

    # What the keeper asks for

    def seconds_since_renewal(self) -> float:
        """Return how long ago the last beat was begun that was answered; for ever when one is wanted now."""
        return math.inf if self._is_urgent else self._clock.monotonic() - self._renewed_at

    def seconds_left(self) -> float:
        """Return how long until the first lease runs out; an interval at most, since jobs are added meanwhile."""
        now = self._clock.monotonic()
        return min([self._kept.interval, *(_usable_until(running) - now for running in self._losable())])

    def heartbeat(self, *, wait_seconds: float = 0.0) -> None:
        """Extend every lease by one statement, and learn which are gone and which jobs were cancelled.

        Raises:
            Exception: the database did not answer; a retry can help.
        """
        self._is_urgent = False
        asked_at = self._clock.monotonic()
        held = [running for running in self._in_flight.all() if not running.is_taken and self._is_live(running)]
        answer = self._store.heartbeat(self._worker, [running.claim for running in held]) if held else {}
        self._renewed_at = max(self._renewed_at, asked_at)  # two beats may be answered in any order
        for running in held:
            if running.claim in answer:
                running.extended_at = max(running.extended_at, asked_at)
                self._pass_on_cancel(running, answer[running.claim])
            elif not running.is_reported:
                self._lose(running, is_certain=True)

    def mark_lost(self) -> None:
        """Take leases for lost that no beat has extended, shortly before others may reap them."""
        now = self._clock.monotonic()
        for running in self._losable():
            if _usable_until(running) <= now:
                self._lose(running, is_certain=False)

    def _losable(self) -> list[Running]:
        """Return the jobs that the clock can take: not those that end, nor those that hold SQLite's write lock."""
        every = self._in_flight.all()
        return [item for item in every if item.locked_since is None and not item.is_reported and not item.is_lost]

    def _lose(self, running: Running, *, is_certain: bool) -> None:
        self._telemetry.lost(running)
        running.lose(is_certain=is_certain)
        if running.transaction is not None:
            running.transaction.lose()

    def _pass_on_cancel(self, running: Running, reason: str | None) -> None:
        if reason is not None and running.cancel_reason is None:
            running.cancel(reason)


def _usable_until(running: Running) -> float:
    return running.extended_at + running.job.lease_seconds * _USABLE_LEASE
