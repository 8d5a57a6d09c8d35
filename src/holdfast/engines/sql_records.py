"""The history and the dead letters of engines in the unified SQL tables."""

from __future__ import annotations

from sqlalchemy.engine import Engine

from ..jobs.texts import whole
from ..records.database import changing
from ..records.dead_letters import DeadLetter, DeadLetters
from ..records.history import History, HistoryEntry, HistoryStatus
from .messages import EngineMessage
from .ports import Ended, FailedBefore


class SqlEngineRecords:
    """Records in a database; each write is a transaction of its own."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._history = History(engine)
        self._letters = DeadLetters(engine)

    def has_succeeded(self, message: EngineMessage) -> bool:
        """Return whether the history knows a success of this engine, operation and correlation id."""
        return any(entry.status is HistoryStatus.SUCCEEDED for entry in self._of(message))

    def failures(self, message: EngineMessage) -> list[FailedBefore]:
        """Return the executions of the same that failed, oldest first."""
        found = [entry for entry in self._of(message) if entry.status is HistoryStatus.FAILED]
        return [FailedBefore(entry.created_at, entry.error or "") for entry in found]

    def record(self, ended: Ended) -> None:
        """Add an execution to the history."""
        message = ended.message
        with changing(self._engine) as connection:
            self._history.add(
                connection,
                engine=message.engine,
                operation=message.operation,
                status=HistoryStatus.SUCCEEDED if ended.error is None else HistoryStatus.FAILED,
                duration_ms=ended.duration_ms,
                correlation_id=message.correlation_id,
                instance_id=message.instance_id,
                input=whole(message.rendered()),
                output=None if ended.output is None else whole(ended.output),
                error=None if ended.error is None else whole(ended.error),
                item_id=message.message_id,
                attempt=ended.attempt,
            )

    def bury(self, letter: DeadLetter) -> bool:
        """Add a dead letter if it is not there yet."""
        with changing(self._engine) as connection:
            return self._letters.add(connection, letter)

    def _of(self, message: EngineMessage) -> list[HistoryEntry]:
        found = self._history.by_correlation(message.correlation_id)
        return [entry for entry in found if (entry.engine, entry.operation) == (message.engine, message.operation)]
