"""The dead letters and the history in a database, behind the protocol: every call is a transaction of its own."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ColumnElement, and_, func, select, tuple_, update
from sqlalchemy.engine import Engine

from ..core.errors import ConfigurationError
from ..core.key_text import is_plain
from ..database.unreadable import has_unreadable
from . import audit, retention
from .database import changing, reading
from .dead_letters import (
    DECIDED,
    NEWEST_FIRST,
    DeadLetter,
    DeadLetters,
    Decision,
    LetterFilter,
    LetterStatus,
    NewLetter,
    check_age,
    expiry_notes,
    letter_conditions,
    letter_of,
    no_such_letter,
    settled_columns,
)
from .filters import can_match
from .history import (
    ENTRIES,
    History,
    HistoryEntry,
    HistoryFilter,
    NewEntry,
    entry_of,
)
from .paging import DEFAULT_LIMIT, Page, moment_in, position_in, token_of
from .protocol import EVERY_ENTRY, EVERY_LETTER, HistoryTable, LetterTable
from .readable import StoredRow, readable_page, rows_in
from .retention import RETENTION_DAYS
from .row_keys import parsed_history_key
from .schema import dead_letters_table, history_table
from .times import database_now, days_before

_LETTERS = "dead letters"
_HISTORY = "history"
_letters = dead_letters_table.c
_entries = history_table.c


class SqlLetterTable(LetterTable):
    """A ``LetterTable`` in a database. Pages begin with the last failure; every change by an operator is audited."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._letters = DeadLetters(engine)

    def now(self) -> datetime:
        """Return the database's time."""
        with reading(self._engine) as connection:
            return database_now(connection)

    def add(self, letter: NewLetter) -> bool:
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
        if not can_match(wanted):
            return Page([], None)
        query = select(dead_letters_table).where(*letter_conditions(wanted)).order_by(*NEWEST_FIRST)
        if after is not None:
            query = query.where(_behind(after))
        return readable_page(self._engine, query, limit, letter_of, _token)

    def count(self, wanted: LetterFilter = EVERY_LETTER) -> int:
        """Return how many letters are wanted."""
        if not can_match(wanted):
            return 0
        query = select(func.count()).select_from(dead_letters_table).where(*letter_conditions(wanted))
        with reading(self._engine) as connection:
            return int(connection.execute(query).scalar_one())

    def decide(self, decision: Decision) -> DeadLetter:
        """Do with a letter what an operator decided."""
        _check_key(decision.engine, decision.row_key)
        with changing(self._engine) as connection:
            return self._letters.decide(connection, decision)

    def expire(self, older_than_days: float, engine: str | None = None, *, actor: str) -> int:
        """Give up on old Pending letters, all of them or none."""
        check_age(older_than_days)
        with changing(self._engine) as connection:
            until = days_before(database_now(connection), older_than_days)
            wanted = LetterFilter(engine=engine, status=LetterStatus.PENDING, until=until, is_retry_begun=False)
            values = settled_columns(connection, LetterStatus.EXPIRED, expiry_notes(older_than_days), actor)
            pending = update(dead_letters_table).where(*letter_conditions(wanted))
            expired = connection.execute(pending.values(values)).rowcount
            if expired:
                details = {"older_than_days": older_than_days, "expired": expired}
                action = DECIDED[LetterStatus.EXPIRED]
                audit.record(connection, actor, action, engine or "every engine", details)
        return expired

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

    def prune(self, retention_days: float = RETENTION_DAYS) -> int:
        """Forget settled letters, in batches."""
        return retention.prune_letters(self._engine, retention_days)


class SqlHistoryTable(HistoryTable):
    """A ``HistoryTable`` in a database. Pages begin with the newest entry."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._history = History(engine)

    def add(self, entry: NewEntry) -> HistoryEntry:
        """Add an entry and return it."""
        with changing(self._engine) as connection:
            entry_id = self._history.add(connection, entry)
            return entry_of(*rows_in(connection, select(history_table).where(_entries.id == entry_id)))

    def get(self, engine: str, row_key: str) -> HistoryEntry | None:
        """Return one entry; None when no entry has that key."""
        try:
            key = parsed_history_key(row_key)
        except ConfigurationError:  # what is no key is the key of none
            return None
        if not is_plain(engine):
            return None
        query = select(history_table).where(_entries.id == key.id, _entries.engine == engine)
        with reading(self._engine) as connection:
            found = next(map(entry_of, rows_in(connection, query)), None)
        return found if found is not None and found.row_key == row_key else None

    def page(
        self, wanted: HistoryFilter = EVERY_ENTRY, limit: int = DEFAULT_LIMIT, after: str | None = None
    ) -> Page[HistoryEntry]:
        """Return entries, the newest first."""
        if not can_match(wanted):
            return Page([], None)
        query = select(history_table).where(*ENTRIES.conditions(wanted)).order_by(_entries.id.desc())
        if after is not None:
            query = query.where(_entries.id < position_in(_HISTORY, after, [int])[0])
        return readable_page(self._engine, query, limit, entry_of, lambda row: token_of(_HISTORY, row["id"]))

    def in_order(self, wanted: HistoryFilter) -> list[HistoryEntry]:
        """Return what one engine did for one piece of business, oldest first."""
        return self._history.in_order(wanted) if can_match(wanted) else []

    def last(self, wanted: HistoryFilter) -> HistoryEntry | None:
        """Return the last entry that is wanted."""
        if not can_match(wanted):
            return None
        query = select(history_table).where(*ENTRIES.conditions(wanted)).order_by(_entries.id.desc())
        with reading(self._engine) as connection:
            return next(map(entry_of, rows_in(connection, query.limit(1))), None)

    def prune(self, retention_days: float = RETENTION_DAYS) -> int:
        """Forget old entries, in batches."""
        return retention.prune_history(self._engine, retention_days)


def _check_key(engine: str, row_key: str) -> None:
    """Check that there can be such a letter: not every database takes every text even in a question."""
    if not is_plain(engine + row_key):
        raise no_such_letter(engine, row_key)


def _token(row: StoredRow) -> str:
    if has_unreadable(row[column] for column in ("last_failure_at", "engine", "row_key")):
        letter_of(row)  # which refuses it
    return token_of(_LETTERS, row["last_failure_at"].isoformat(), row["engine"], row["row_key"])


def _behind(token: str) -> ColumnElement[bool]:
    text, engine_name, row_key = position_in(_LETTERS, token, [str, str, str])
    moment = moment_in(_LETTERS, token, text)
    # The first condition says nothing new, but every database can use an index for it.
    row = tuple_(_letters.last_failure_at, _letters.engine, _letters.row_key)
    return and_(_letters.last_failure_at <= moment, row < tuple_(moment, engine_name, row_key))
