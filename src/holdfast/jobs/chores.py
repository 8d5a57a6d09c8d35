"""Work that comes up now and then, on one thread beside the jobs: periodic jobs, retention."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from ..core.clock import Clock
from ..core.errors import Ambiguous, DbConnectionError, Unavailable
from .telemetry import WorkerTelemetry

_AFTER_ERROR_SECONDS = 5.0
_LONGEST_SECONDS = 3600.0
_STOP_SECONDS = 5.0

Chore = Callable[[], float | None]


class Chores:
    """Calls each chore when it is due. A chore returns in how many seconds it is due again, None for never."""

    def __init__(self, chores: Sequence[Chore], telemetry: WorkerTelemetry, clock: Clock) -> None:
        self._telemetry = telemetry
        self._clock = clock
        self._due = {chore: clock.monotonic() for chore in chores}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-jobs-chores", daemon=True)

    def start(self) -> None:
        """Begin."""
        if self._due:
            self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Return whether chores are still done, if there are any."""
        return not self._due or self._thread.is_alive()

    def stop(self) -> None:
        """End, once the chore at hand is done."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        while not self._stop.is_set():
            for chore, due in list(self._due.items()):
                if due <= self._clock.monotonic() and not self._stop.is_set():
                    self._due[chore] = self._clock.monotonic() + self._done(chore)
            self._clock.wait(self._stop, min(self._due.values()) - self._clock.monotonic())

    def _done(self, chore: Chore) -> float:
        try:
            seconds = chore()
        except (Unavailable, Ambiguous, DbConnectionError) as error:
            self._telemetry.unavailable("A chore", error)
            return _AFTER_ERROR_SECONDS
        except Exception:
            self._telemetry.broke("A chore")
            return _AFTER_ERROR_SECONDS
        return _LONGEST_SECONDS if seconds is None else seconds
