"""What the flow of an engine records, in the unified tables: SQL or Azure's, behind their protocols."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress

from ..core.errors import Conflict, NotFoundError
from ..records.dead_letters import DeadLetter, LetterFilter, LetterStatus, NewLetter
from ..records.failure_text import failure_text, public_failure
from ..records.history import HistoryStatus, NewEntry
from ..records.location import TablePair
from ..records.paging import MAX_LIMIT
from ..records.protocol import HistoryTable, LetterTable
from .messages import EngineMessage
from .ports import Ended, FailedBefore

_log = logging.getLogger("holdfast.engines")
_SUCCEEDED_AFTER_ALL = "the operation succeeded after all; see the history"
_BY_ITSELF = "holdfast"


class TableRecords:
    """Records in two tables; each write is one of its own.

    Args:
        tables: returns the tables; asked each time, for the registry may name others while a worker runs.
    """

    def __init__(self, tables: Callable[[], TablePair]) -> None:
        self._tables = tables

    @property
    def letters(self) -> LetterTable:
        """Return the dead letters."""
        return self._tables().letters

    @property
    def history(self) -> HistoryTable:
        """Return the history."""
        return self._tables().history

    def has_succeeded(self, message: EngineMessage) -> bool:
        """Return whether the history knows a success of the application's engine, operation and correlation id."""
        return self.history.succeeded(*message.key) is not None

    def failures(self, message: EngineMessage) -> list[FailedBefore]:
        """Return the executions of this very message that failed, oldest first."""
        return [
            FailedBefore(entry.created_at, entry.error or "", entry.attempt or 0, entry.traceback)
            for entry in self.history.in_order(message.business)
            if entry.status is HistoryStatus.FAILED and entry.item_id == message.message_id
        ]

    def record(self, ended: Ended) -> None:
        """Add an execution to the history."""
        self.history.add(entry_of(ended))

    def is_buried(self, message: EngineMessage) -> bool:
        """Return whether a Pending dead letter is about this very message."""
        return next(self._pending(message), None) is not None

    def withdraw(self, message: EngineMessage) -> None:
        """Resolve the Pending dead letter of a message whose success was recorded at the same time."""
        for letter in list(self._pending(message)):
            with suppress(Conflict, NotFoundError):  # a person was faster
                self.letters.resolve(letter.engine, letter.row_key, _SUCCEEDED_AFTER_ALL, _BY_ITSELF)

    def _pending(self, message: EngineMessage) -> Iterator[DeadLetter]:
        wanted = LetterFilter(
            engine=message.engine,
            correlation_id=message.correlation_id,
            status=LetterStatus.PENDING,
            application=message.application,
        )
        after: str | None = None
        while True:
            found = self.letters.page(wanted, MAX_LIMIT, after)
            yield from (letter for letter in found.items if letter.item_id == message.message_id)
            after = found.continuation_token
            if after is None:
                return

    def bury(self, letter: NewLetter) -> None:
        """Add a dead letter if it is not there yet."""
        if self.letters.add(letter):
            log_buried(letter)


def log_buried(letter: NewLetter) -> None:
    """Say that a message was given up."""
    _log.error(
        "Engine '%s' gave message %s up after %d deliveries (correlation id '%s'): %s",
        letter.engine,
        letter.item_id,
        letter.dequeue_count,
        letter.correlation_id,
        public_failure(failure_text(letter.error_message, letter.traceback)),
        extra={"engine": letter.engine, "correlation_id": letter.correlation_id},
    )


def entry_of(ended: Ended) -> NewEntry:
    """Return what the history keeps of an execution."""
    message = ended.message
    return NewEntry(
        engine=message.engine,
        operation=message.operation,
        status=_status_of(ended),
        duration_ms=ended.duration_ms,
        correlation_id=message.correlation_id,
        instance_id=message.instance_id,
        input=message.rendered(),
        output=ended.output,
        error=ended.error,
        item_id=message.message_id,
        attempt=ended.attempt,
        traceback=ended.traceback,
        application=message.application,
    )


def _status_of(ended: Ended) -> HistoryStatus:
    if ended.is_skipped:
        return HistoryStatus.SKIPPED
    return HistoryStatus.SUCCEEDED if ended.error is None else HistoryStatus.FAILED
