"""What is kept of a trigger's failures: the last one in the state document, and each with its traceback in the history.

A delivery that failed is kept under its lease; what keeps a trigger from being run at all, while nobody has the lease.
Neither keeps a trigger from trying again: what cannot be written is logged and forgotten.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta

from ..core.clock import new_id
from ..core.errors import (
    DbError,
    HandlerError,
    LeaseConflictError,
    LostLeaseError,
    StoppedError,
    TransactionEndedError,
    UnreadableStateError,
)
from ..database.error_text import bounded_traceback, error_text, public_error_text
from ..lease.document import parse_time
from ..lease.held_lease import HeldLease, Lease
from ..lease.store import StateStore
from ..records.history import HistoryStatus, NewEntry
from ..records.protocol import HistoryTable
from .telemetry import BatchTrace, TriggerTelemetry

_log = logging.getLogger("holdfast.trigger")
_LONGEST_ERROR = 500
_TOLD_OTHERWISE = (LostLeaseError, StoppedError)  # the next holder goes on, or nobody does


class FailureRecord:
    """Keeps what went wrong with one trigger.

    Args:
        name: the trigger.
        history: where each failure is added; None where there is no such table.
    """

    def __init__(self, name: str, history: Callable[[], HistoryTable] | None) -> None:
        self._name = name
        self._history = history

    def add(self, error: Exception, trace: BatchTrace, lease: HeldLease, retry_seconds: float | None) -> None:
        """Keep a delivery that failed; ``retry_seconds`` is given where a worker decides about the next try."""
        if isinstance(error, _TOLD_OTHERWISE) or lease.lost.is_set() or not isinstance(lease, Lease):
            return
        is_stopped = isinstance(error, TransactionEndedError)  # its document says why
        cause = _cause_of(error)
        try:
            if not is_stopped:
                due = None if retry_seconds is None else lease.now() + timedelta(seconds=retry_seconds)
                lease.record_failure(_said(cause), due)
            duration_ms = int(sum(trace.durations_ms.values()))
            self._add_entry(error, max(1, lease.failures), trace.batch_id, duration_ms)
        except DbError as unwritten:
            _log.warning("That trigger '%s' failed could not be recorded: %s", self._name, unwritten)

    def add_fault(
        self, store: StateStore, telemetry: TriggerTelemetry | None, error: Exception, retry_seconds: float
    ) -> None:
        """Keep what keeps the trigger from being run here, unless someone else runs it, or it is stopped.

        Raises:
            DbError: it could not be kept.
        """
        try:
            kept = store.keep_failure(self._name, _said(error), retry_seconds)
        except LeaseConflictError:
            return
        except UnreadableStateError:  # that is the fault
            kept = None
        if kept is not None and telemetry is not None:
            telemetry.unread(parse_time(kept["at"]))
        self._add_entry(error, 1 if kept is None else kept["count"], new_id(), 0)

    def clear(self, delivered: int, lease: HeldLease) -> None:
        """Note that a round went well; a delivery's commit has done so by itself."""
        if not delivered and isinstance(lease, Lease) and lease.failures:
            try:
                lease.record_success()
            except DbError as unwritten:
                _log.debug("That trigger '%s' works again could not be recorded: %s", self._name, unwritten)

    def _add_entry(self, error: Exception, count: int, correlation_id: str, duration_ms: int) -> None:
        if self._history is not None:
            self._history().add(
                NewEntry(
                    engine=f"trigger:{self._name}",
                    operation=self._name,
                    status=HistoryStatus.FAILED,
                    duration_ms=duration_ms,
                    correlation_id=correlation_id,
                    error=error_text(_cause_of(error)),
                    traceback=bounded_traceback(error),
                    attempt=count,
                )
            )


def _cause_of(error: Exception) -> Exception:
    """Return what people have to mend: of a handler its own error, of anything else the sentence that says it."""
    is_handlers = isinstance(error, HandlerError) and not isinstance(error, TransactionEndedError)
    return error.__cause__ if is_handlers and isinstance(error.__cause__, Exception) else error


def _said(error: Exception) -> str:
    return public_error_text(error)[:_LONGEST_ERROR]
