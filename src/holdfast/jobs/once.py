"""Jobs that may run once: with ``max_attempts=1`` nobody may begin them a second time [ONCE-1].

Their begin is recorded before the handler is called, so a worker that is lost leaves a dead letter of what had begun
and nothing of what had not. They begin one after the other, each when the one before has been reported or has run for
a moment: the job that kills its worker then has no fresh neighbours to take with it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable

from ..core.clock import Clock
from .model import Claim
from .running import InFlight, Running

_FRESH_SECONDS = 0.1


def may_run_once(running: Running) -> bool:
    """Return whether a job may never begin a second time."""
    return running.job.max_attempts == 1


class OnceLine:
    """The line in which such jobs wait for their begin. Called from several threads."""

    def __init__(self, in_flight: InFlight, clock: Clock, start: Callable[[Running], None]) -> None:
        self._in_flight = in_flight
        self._clock = clock
        self._start = start
        self._lock = threading.Lock()
        self._line: deque[Running] = deque()
        self._last: Running | None = None

    @property
    def waiting_since(self) -> float | None:
        """Return when the first in line was claimed, None when nobody waits."""
        with self._lock:
            return self._line[0].started_at if self._line else None

    def is_awaited(self, claim: Claim) -> bool:
        """Return whether the next in line waits for the report of this job."""
        return self._last is not None and self._last.claim == claim

    def put(self, jobs: Iterable[Running]) -> None:
        """Take jobs in."""
        with self._lock:
            self._line.extend(jobs)
        self.advance()

    def advance(self) -> None:
        """Let the next begin if the one before is over, or no longer fresh."""
        with self._lock:
            if not self._line or self._is_fresh(self._last):
                return
            self._last = self._line.popleft()
            following = self._last
        self._start(following)

    def take_back(self) -> list[Running]:
        """Return the jobs that have not begun."""
        with self._lock:
            waiting = list(self._line)
            self._line.clear()
        return waiting

    def _is_fresh(self, running: Running | None) -> bool:
        if running is None or not self._in_flight.get([running.claim]):
            return False
        return running.begun_at is None or self._clock.monotonic() - running.begun_at < _FRESH_SECONDS
