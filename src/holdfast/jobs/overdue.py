"""``max_seconds``: what becomes of a handler that runs longer than its job allows.

A coroutine is cancelled. A thread cannot be stopped, so it is abandoned: its connection is cut, its attempt is reported
as failed at once, whatever it reports later is refused, and its place is counted as lost until it comes back.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial

from ..core.clock import Clock
from ..runtime.transaction import ENDED, HandlerTransaction, left_behind
from .model import Failure, PutBack, Settled, failure_of
from .running import InFlight, Running

_log = logging.getLogger("holdfast.jobs")
_AFTER_CANCEL_SECONDS = 5.0  # for a coroutine to end once it was cancelled


def overdue_error(running: Running) -> str:
    """Return what the history tells of an attempt that ran for too long."""
    return f"ran longer than max_seconds={running.handler.max_seconds:g}"


def report_left_behind(running: Running) -> Failure | PutBack | Settled:
    """Return the report for an attempt whose worker stops without it: it comes again, unless a part may be kept."""
    reason, delivering = left_behind(running.transaction), running.handler.delivering
    if reason is not None and delivering is not None:
        return delivering.report_ended(running, reason)
    if reason is not None:
        return Failure(running.claim, 0, reason, is_final=True)
    return PutBack(running.claim, 0.0, "the worker stopped before the handler ended")


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
        report: Callable[[Failure | PutBack], None],
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
        return not running.is_reported and not running.is_abandoned

    def _stopped(self, running: Running, now: float) -> bool:
        left = running.seconds_left(now)
        if left is None or left > 0:
            return False
        if running.handler.is_async and -left < _AFTER_CANCEL_SECONDS:
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
        running.lose(is_certain=True)
        failure = Failure(running.claim, int((now - running.begun_at) * 1000), overdue_error(running))
        self.cut(running.transaction, failure)
        return True

    def cut(self, transaction: HandlerTransaction | None, report: Failure | PutBack) -> None:
        """Cut the connection of a handler that was left to itself, and report its attempt."""
        if transaction is None:
            self._report(report)
        else:
            self._aside(partial(self._cut_and_report, transaction, report))

    def _aside(self, step: Callable[[], None]) -> None:
        """Do what waits for the database on a thread of its own: who looks here also declares leases lost."""
        try:
            threading.Thread(target=step, name="holdfast-jobs-cut", daemon=True).start()
        except RuntimeError:  # the machine gives no thread
            step()

    def _cut_and_report(self, transaction: HandlerTransaction, report: Failure | PutBack) -> None:
        """Cut first: on PostgreSQL the report waits for whoever holds the job. What was ended is never repeated."""
        try:
            if transaction.abandon():
                failure = report if isinstance(report, Failure) else failure_of(report)
                report = failure._replace(error=f"{ENDED}. Then this was met: {failure.error}", is_final=True)
        except Exception:
            _log.exception("The connection of job %d, which was left to itself, could not be cut", report.claim.id)
        finally:
            self._report(report)
