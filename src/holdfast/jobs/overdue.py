"""``max_seconds``: what becomes of a handler that runs longer than its job allows.

A coroutine is cancelled. A thread cannot be stopped, so it is abandoned: its connection is cut, its attempt is reported
as failed at once, whatever it reports later is refused, and its place is counted as lost until it comes back.
"""

from __future__ import annotations

from collections.abc import Callable

from ..core.clock import Clock
from .model import Failure
from .running import InFlight, Running

_AFTER_CANCEL_SECONDS = 5.0  # for a coroutine to end once it was cancelled


def overdue_error(running: Running) -> str:
    """Return what the history tells of an attempt that ran for too long."""
    return f"ran longer than max_seconds={running.handler.max_seconds:g}"


class Overdue:
    """Looks for handlers that have run for too long.

    Args:
        abandon: leaves the thread or task of a job to itself; tells whether it had not ended meanwhile.
        report: sends the report of an attempt.
    """

    def __init__(
        self,
        in_flight: InFlight,
        clock: Clock,
        *,
        abandon: Callable[[Running], bool],
        report: Callable[[Failure], None],
    ) -> None:
        self._in_flight = in_flight
        self._clock = clock
        self._abandon = abandon
        self._report = report

    def look(self) -> list[Running]:
        """Stop what has run for too long; return what had to be abandoned."""
        now = self._clock.monotonic()
        return [running for running in self._in_flight.all() if self._is_open(running) and self._stopped(running, now)]

    def _is_open(self, running: Running) -> bool:
        limited = running.handler.max_seconds is not None and running.begun_at is not None
        return limited and not running.is_reported and not running.is_abandoned

    def _stopped(self, running: Running, now: float) -> bool:
        assert running.begun_at is not None
        assert running.handler.max_seconds is not None
        late = now - running.begun_at - running.handler.max_seconds
        if late < 0:
            return False
        if running.handler.is_async and late < _AFTER_CANCEL_SECONDS:
            self._cancel(running)
            return False
        return self._give_up(running, now)

    def _cancel(self, running: Running) -> None:
        if not running.is_overdue and running.stop_task is not None:
            running.is_overdue = True
            running.stop_task()

    def _give_up(self, running: Running, now: float) -> bool:
        if not self._abandon(running):
            return False
        assert running.begun_at is not None
        running.is_reported = True
        running.lose(is_certain=True)
        if running.transaction is not None:
            running.transaction.cut()
        self._report(Failure(running.claim, int((now - running.begun_at) * 1000), overdue_error(running)))
        return True
