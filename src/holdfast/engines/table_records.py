"""What the flow of an engine records, in the unified tables: SQL or Azure's, behind their protocols."""

from __future__ import annotations

from ..records.dead_letters import DeadLetter
from ..records.history import HistoryStatus
from ..records.protocol import HistoryTable, LetterTable
from .messages import EngineMessage
from .ports import Ended, FailedBefore


class TableRecords:
    """Records in two tables; each write is one of its own."""

    def __init__(self, letters: LetterTable, history: HistoryTable) -> None:
        self.letters = letters
        self.history = history

    def has_succeeded(self, message: EngineMessage) -> bool:
        """Return whether the history knows a success of this engine, operation and correlation id."""
        return self.history.succeeded(message.engine, message.operation, message.correlation_id) is not None

    def failures(self, message: EngineMessage) -> list[FailedBefore]:
        """Return the executions of the same that failed, oldest first."""
        found = self.history.of_correlation(message.engine, message.correlation_id, message.operation)
        failed = [entry for entry in found if entry.status is HistoryStatus.FAILED]
        return [FailedBefore(entry.created_at, entry.error or "") for entry in failed]

    def record(self, ended: Ended) -> None:
        """Add an execution to the history."""
        message = ended.message
        self.history.add(
            engine=message.engine,
            operation=message.operation,
            status=HistoryStatus.SUCCEEDED if ended.error is None else HistoryStatus.FAILED,
            duration_ms=ended.duration_ms,
            correlation_id=message.correlation_id,
            instance_id=message.instance_id,
            input=message.rendered(),
            output=ended.output,
            error=ended.error,
            item_id=message.message_id,
            attempt=ended.attempt,
        )

    def bury(self, letter: DeadLetter) -> bool:
        """Add a dead letter if it is not there yet."""
        return self.letters.add(letter)
