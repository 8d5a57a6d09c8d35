"""What the flow of an engine records, in the unified tables: SQL or Azure's, behind their protocols."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from sqlalchemy.engine import Engine

from ..core.errors import Conflict, LostLeaseError, NotFoundError
from ..records.database import changing
from ..records.dead_letters import DeadLetter, LetterFilter, LetterStatus
from ..records.history import History, HistoryStatus
from ..records.paging import MAX_LIMIT
from ..records.protocol import HistoryTable, LetterTable
from .messages import EngineMessage
from .ports import Ended, FailedBefore
from .queues.embedded import EmbeddedQueue
from .queues.protocol import EngineQueue, Received

_SUCCEEDED_AFTER_ALL = "the operation succeeded after all; see the history"
_BY_ITSELF = "holdfast"


class TableRecords:
    """Records in two tables; each write is one of its own."""

    def __init__(self, letters: LetterTable, history: HistoryTable) -> None:
        self.letters = letters
        self.history = history

    def has_succeeded(self, message: EngineMessage) -> bool:
        """Return whether the history knows a success of this engine, operation and correlation id."""
        return self.history.succeeded(message.engine, message.operation, message.correlation_id) is not None

    def failures(self, message: EngineMessage) -> list[FailedBefore]:
        """Return the executions of this very message that failed, oldest first."""
        found = self.history.of_correlation(message.engine, message.correlation_id, message.operation)
        return [
            FailedBefore(entry.created_at, entry.error or "")
            for entry in found
            if entry.status is HistoryStatus.FAILED and entry.item_id == message.message_id
        ]

    def record(self, ended: Ended) -> None:
        """Add an execution to the history."""
        self.history.add(**_entry(ended))

    def settle(self, ended: Ended, queue: EngineQueue, received: Received, reached: Callable[[str], None]) -> None:
        """Add a success to the history, then delete its message.

        A message that is not ours any more was taken over while we wrote, and may have been buried: the success counts.
        """
        self.record(ended)
        reached("recorded")
        if not queue.delete(received):
            self.withdraw(ended.message)

    def is_buried(self, message: EngineMessage) -> bool:
        """Return whether a Pending dead letter is about this very message."""
        return next(self._pending(message), None) is not None

    def withdraw(self, message: EngineMessage) -> None:
        """Resolve the Pending dead letter of a message whose success was recorded at the same time."""
        for letter in list(self._pending(message)):
            with suppress(Conflict, NotFoundError):  # a person was faster
                self.letters.resolve(letter.engine, letter.row_key, _SUCCEEDED_AFTER_ALL, _BY_ITSELF)

    def _pending(self, message: EngineMessage) -> Iterator[DeadLetter]:
        wanted = LetterFilter(engine=message.engine, correlation_id=message.correlation_id, status=LetterStatus.PENDING)
        after: str | None = None
        while True:
            found = self.letters.page(wanted, MAX_LIMIT, after)
            yield from (letter for letter in found.items if letter.item_id == message.message_id)
            after = found.continuation_token
            if after is None:
                return

    def bury(self, letter: DeadLetter) -> bool:
        """Add a dead letter if it is not there yet."""
        return self.letters.add(letter)


class DatabaseRecords(TableRecords):
    """Records in the database that the embedded queue is in, too: a success and its message's end are one transaction.

    So a worker that was paused for long and lost its message cannot write a success beside a dead letter.
    """

    def __init__(self, letters: LetterTable, history: HistoryTable, engine: Engine) -> None:
        super().__init__(letters, history)
        self._engine = engine

    def settle(self, ended: Ended, queue: EngineQueue, received: Received, reached: Callable[[str], None]) -> None:
        """Add a success to the history and delete its message, both or neither."""
        if not isinstance(queue, EmbeddedQueue):
            super().settle(ended, queue, received, reached)
            return
        with changing(self._engine) as connection:
            if not queue.delete(received, connection):
                raise LostLeaseError(f"Message {received.id} is no longer this worker's; its end is not recorded.")
            History(self._engine).add(connection, **_entry(ended))
            reached("recorded")


def _entry(ended: Ended) -> dict[str, Any]:
    message = ended.message
    return {
        "engine": message.engine,
        "operation": message.operation,
        "status": HistoryStatus.SUCCEEDED if ended.error is None else HistoryStatus.FAILED,
        "duration_ms": ended.duration_ms,
        "correlation_id": message.correlation_id,
        "instance_id": message.instance_id,
        "input": message.rendered(),
        "output": ended.output,
        "error": ended.error,
        "item_id": message.message_id,
        "attempt": ended.attempt,
    }
