"""Ends of messages in the database, many at once: what is recorded of them and what becomes of them is one transaction.

So a message that has a success or a dead letter is gone, and one that is gone has either [ENGINE-1]. A worker that was
paused for long and lost its message records nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy.engine import Connection

from ..jobs.model import Claim, Failure, Settled, WorkerId
from ..jobs.stores.base import SqlJobStore
from ..records.dead_letters import DeadLetters, NewLetter
from ..records.history import History, NewEntry
from .messages import EngineMessage
from .store import TableRecords, log_buried


@dataclass(frozen=True, slots=True)
class Dropped:
    """A message that goes, with what is recorded of it; ``elsewhere`` if its success was recorded outside."""

    entry: NewEntry | None = None
    letter: NewLetter | None = None
    elsewhere: EngineMessage | None = None


@dataclass(frozen=True, slots=True)
class Retried:
    """A message that comes again after a failure."""

    entry: NewEntry | None
    error: str
    delay_seconds: float


class Drops:
    """Deletes messages, and records why.

    Args:
        store: where the messages are.
        records: where dead letters are that are not in the same database.
        reached: called at every boundary between two steps; for tests that stop there.
    """

    def __init__(self, store: SqlJobStore, records: TableRecords, reached: Callable[[str], None]) -> None:
        self._store = store
        self._letters = DeadLetters(store.engine)
        self._records = records
        self._reached = reached

    def settle(self, worker: WorkerId, batch: Sequence[Settled]) -> set[Claim]:
        """Delete what is still ours and record its end, all of it or nothing."""
        with self._store.transaction() as connection:
            ours = self._store.drop_recorded_on(
                connection, worker, {report.claim: report.value.entry for report in batch}
            )
            buried = self._bury(connection, [report.value for report in batch if report.claim in ours])
        for letter in buried:
            log_buried(letter)
        self._withdraw(report.value for report in batch if report.claim not in ours)
        return ours

    def _bury(self, connection: Connection, ends: Sequence[Dropped]) -> list[NewLetter]:
        letters = [end.letter for end in ends if end.letter is not None]
        added = [letter for letter in letters if self._letters.add(connection, letter)]
        if letters:
            self._reached("buried")
        elif any(end.entry is not None for end in ends):
            self._reached("recorded")
        return added

    def _withdraw(self, refused: Iterable[Dropped]) -> None:
        """Resolve the dead letter of a message that was taken over while its success was recorded elsewhere."""
        for end in refused:
            if end.elsewhere is not None:
                self._records.withdraw(end.elsewhere)


class Retries:
    """Lets messages that failed come again, charged, and records the failures. The arguments are those of ``Drops``."""

    def __init__(self, store: SqlJobStore, reached: Callable[[str], None]) -> None:
        self._store = store
        self._history = History(store.engine)
        self._reached = reached

    def settle(self, worker: WorkerId, batch: Sequence[Settled]) -> set[Claim]:
        """Put back what is still ours and record its failure, all of it or nothing."""
        failures = [_failure(report.claim, report.value) for report in batch]
        with self._store.transaction() as connection:
            ours = set(self._store.fail_on(connection, worker, failures))
            entries = [report.value.entry for report in batch if report.claim in ours and report.value.entry]
            self._history.add_many(connection, entries)
            if entries:
                self._reached("failure recorded")
        return ours


def _failure(claim: Claim, retried: Retried) -> Failure:
    return Failure(claim, 0, retried.error, retried.delay_seconds)
