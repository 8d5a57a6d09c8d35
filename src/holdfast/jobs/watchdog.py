"""Looks for leases that ran out anywhere, on a thread of its own: no beat waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ..core.clock import Clock
from ..runtime.housekeeping import Chore, Housekeeping
from .stores.protocol import WorkerStore
from .telemetry import WorkerTelemetry

_REAP_AT_ONCE = 1000
_STOP_SECONDS = 5.0


class Watchdog:
    """Ends attempts whose lease has passed, whoever's they were [REAP-1].

    Args:
        before: called before every look, which does not take place when it raises. A worker beats there: one that was
            stopped for a while must not reap itself while it still could have gone on.
        on_reaped: called when jobs may be claimed again.
    """

    def __init__(
        self,
        store: WorkerStore,
        telemetry: WorkerTelemetry,
        clock: Clock,
        *,
        seconds: float,
        before: Callable[[], None],
        on_reaped: Callable[[], None],
    ) -> None:
        self._store = store
        self._telemetry = telemetry
        self._before = before
        self._on_reaped = on_reaped
        self._stop = threading.Event()
        rounds = Housekeeping([Chore("the watchdog", self.reap, seconds)], self._stop, clock=clock)
        self._thread = threading.Thread(target=rounds.run, name="holdfast-jobs-watchdog", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self, seconds: float = _STOP_SECONDS) -> None:
        """End, and wait so long for a look that is under way."""
        self._stop.set()
        self._thread.join(seconds)

    @property
    def is_alive(self) -> bool:
        """Return whether it goes on looking."""
        return self._thread.is_alive()

    def reap(self) -> float | None:
        """Look once; return 0 when there may be more."""
        self._before()
        decided = self._store.reap(_REAP_AT_ONCE)
        if decided:
            self._telemetry.reaped(decided)
            self._on_reaped()
        return None if len(decided) < _REAP_AT_ONCE else 0.0
