"""The dead letters and the history in a database, behind the protocol: every call is a transaction of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

from sqlalchemy.engine import Connection, Engine

from ..core.errors import ConfigurationError
from . import retention
from .database import changing, reading
from .dead_letters import DeadLetter, DeadLetters, LetterFilter, LetterStatus, no_such_letter
from .exact import is_plain
from .history import History, HistoryEntry, HistoryFilter, HistoryStatus
from .matching import can_match
from .paging import DEFAULT_LIMIT, Page
from .protocol import EVERY_ENTRY, EVERY_LETTER
from .retention import RETENTION_DAYS
from .row_keys import parsed_history_key
from .schema import PUBLISHER
from .times import database_now


class SqlLetterTable:
    """A ``LetterTable`` in a database. Pages begin with the last failure; every change by hand is audited."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._letters = DeadLetters(engine)

    def add(self, letter: DeadLetter) -> bool:
        """Add a letter; False when its key is there already."""
        with changing(self._engine) as connection:
            return self._letters.add(connection, letter)

    def get(self, engine: str, row_key: str) -> DeadLetter | None:
        """Return one letter."""
        return self._letters.get(engine, row_key) if is_plain(engine + row_key) else None

    def page(
        self, wanted: LetterFilter = EVERY_LETTER, limit: int = DEFAULT_LIMIT, after: str | None = None
    ) -> Page[DeadLetter]:
        """Return letters, those that failed last first."""
        return self._letters.page(wanted, limit, after) if can_match(wanted) else Page([], None)

    def count(self, wanted: LetterFilter = EVERY_LETTER) -> int | None:
        """Return how many letters are wanted."""
        return self._letters.count(wanted) if can_match(wanted) else 0

    def resolve(self, engine: str, row_key: str, notes: str, actor: str, *, despite_retry: bool = False) -> DeadLetter:
        """Mark a Pending letter as dealt with."""
        _check_key(engine, row_key)
        return self._letters.resolve(engine, row_key, notes, actor, despite_retry=despite_retry)

    def expire_one(
        self, engine: str, row_key: str, notes: str, actor: str, *, despite_retry: bool = False
    ) -> DeadLetter:
        """Give up on one Pending letter."""
        _check_key(engine, row_key)
        return self._letters.expire_one(engine, row_key, notes, actor, despite_retry=despite_retry)

    def expire(self, older_than_days: float, engine: str | None = None, *, actor: str) -> int:
        """Give up on old Pending letters, all of them or none."""
        return self._letters.expire(older_than_days, engine, actor=actor)

    def begin_retry(self, engine: str, row_key: str, actor: str, new_message_id: str) -> DeadLetter:
        """Write down who retries a letter and under which id. Two who begin at a time are given one id."""
        _check_key(engine, row_key)
        with changing(self._engine) as connection:
            return self._letters.begin_retry(connection, engine, row_key, actor, new_message_id)

    def finish_retry(self, engine: str, row_key: str, message_id: str) -> DeadLetter:
        """Mark a letter as retried."""
        _check_key(engine, row_key)
        with changing(self._engine) as connection:
            return self._letters.finish_retry(connection, engine, row_key, message_id)

    @contextmanager
    def retrying(
        self, engine: str, row_key: str, actor: str, new_message_id: str
    ) -> Iterator[tuple[Connection, DeadLetter]]:
        """Retry a letter in one transaction: yield its connection, to enqueue on, and the letter with the id to use.

        When the block or the process fails, nothing has happened.

        Raises:
            NotFoundError: there is no such letter.
            Conflict: it is no longer Pending; nothing was changed.
        """
        _check_key(engine, row_key)
        with changing(self._engine) as connection:
            letter = self._letters.begin_retry(connection, engine, row_key, actor, new_message_id)
            yield connection, letter
            self._letters.finish_retry(connection, engine, row_key, letter.retry_message_id or new_message_id)

    def unfinished_retries(
        self, older_than_seconds: float = 0.0, limit: int = DEFAULT_LIMIT, after: str | None = None
    ) -> Page[DeadLetter]:
        """Return Pending letters whose retry was begun at least so long ago."""
        found = self._letters.page(LetterFilter(status=LetterStatus.PENDING, is_retry_begun=True), limit, after)
        with reading(self._engine) as connection:
            until = database_now(connection) - timedelta(seconds=older_than_seconds)
        old = [letter for letter in found.items if letter.retry_begun_at is None or letter.retry_begun_at <= until]
        return Page(old, found.continuation_token)

    def prune(self, retention_days: float = RETENTION_DAYS) -> int:
        """Forget settled letters, in batches."""
        return retention.prune_letters(self._engine, retention_days)


class SqlHistoryTable:
    """A ``HistoryTable`` in a database. Pages begin with the newest entry."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._history = History(engine)

    def add(
        self,
        *,
        engine: str,
        operation: str,
        status: HistoryStatus,
        duration_ms: int,
        correlation_id: str,
        instance_id: str = PUBLISHER,
        input: str | None = None,
        output: str | None = None,
        error: str | None = None,
        item_id: str | None = None,
        attempt: int | None = None,
        created_at: datetime | None = None,
    ) -> HistoryEntry:
        """Add an entry and return it."""
        with changing(self._engine) as connection:
            entry_id = self._history.add(
                connection,
                engine=engine,
                operation=operation,
                status=status,
                duration_ms=duration_ms,
                correlation_id=correlation_id,
                instance_id=instance_id,
                input=input,
                output=output,
                error=error,
                item_id=item_id,
                attempt=attempt,
                created_at=created_at,
            )
            return self._history.by_id(entry_id, connection)

    def get(self, engine: str, row_key: str) -> HistoryEntry | None:
        """Return one entry; None when no entry has that key."""
        try:
            parsed_history_key(row_key)
        except ConfigurationError:  # what is no key is the key of none
            return None
        return self._history.get(engine, row_key) if is_plain(engine) else None

    def page(
        self, wanted: HistoryFilter = EVERY_ENTRY, limit: int = DEFAULT_LIMIT, after: str | None = None
    ) -> Page[HistoryEntry]:
        """Return entries, the newest first."""
        return self._history.page(wanted, limit, after) if can_match(wanted) else Page([], None)

    def succeeded(self, engine: str, operation: str, correlation_id: str) -> HistoryEntry | None:
        """Return the last success of an operation for one piece of business."""
        is_possible = is_plain(engine + operation + correlation_id)
        return self._history.succeeded(engine, operation, correlation_id) if is_possible else None

    def of_correlation(self, engine: str, correlation_id: str, operation: str | None = None) -> list[HistoryEntry]:
        """Return what an engine did for one piece of business, oldest first."""
        is_possible = is_plain(engine + correlation_id + (operation or ""))
        return self._history.of_correlation(engine, correlation_id, operation) if is_possible else []

    def prune(self, retention_days: float = RETENTION_DAYS) -> int:
        """Forget old entries, in batches."""
        return retention.prune_history(self._engine, retention_days)


def _check_key(engine: str, row_key: str) -> None:
    """Check that there can be such a letter: not every database takes every text even in a question."""
    if not is_plain(engine + row_key):
        raise no_such_letter(engine, row_key)
