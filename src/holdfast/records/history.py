"""History: one entry for every attempt that ended, whatever the workload.

Jobs write theirs in the statement that ends the attempt; other workloads add theirs to their own transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from sqlalchemy import ColumnElement, and_, func, insert, or_, select
from sqlalchemy.engine import Connection, Engine

from .column_limits import check_fits
from .database import reading, translated
from .filters import RecordFilter
from .readable import StoredRow, read, rows_in
from .record_kind import RecordKind
from .row_keys import history_key
from .schema import PUBLISHER, history_table
from .times import database_time

_MOST_OF_ONE_ITEM = 1000
_columns = history_table.c


class SuccessKey(NamedTuple):
    """What a success is looked up by. One without an application, of an earlier release, counts for all of them."""

    engine: str
    operation: str
    correlation_id: str
    application: str | None = None


class HistoryStatus(StrEnum):
    """How an attempt ended. ``UNKNOWN`` is what another program wrote and we cannot read: it counts as no success.

    ``SKIPPED`` is a slot of a timer that was not executed; the entry's error says why.
    """

    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    SKIPPED = "Skipped"
    UNKNOWN = "Unknown"


class NewEntry(NamedTuple):
    """What is recorded of one attempt that ended. Without a moment it gets that of the table.

    ``application`` is whose engine it was; other workloads tell none.
    """

    engine: str
    operation: str
    status: HistoryStatus
    duration_ms: int
    correlation_id: str
    instance_id: str = PUBLISHER
    input: str | None = None
    output: str | None = None
    error: str | None = None
    item_id: str | None = None
    attempt: int | None = None
    created_at: datetime | None = None
    traceback: str | None = None
    application: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry:
    """One attempt that ended. ``input`` and ``output`` are JSON; ``traceback`` is that of a handler that raised.

    ``worker`` is who had it, as far as jobs tell.
    """

    id: int
    engine: str
    instance_id: str
    operation: str
    status: HistoryStatus
    duration_ms: int
    input: str | None
    output: str | None
    error: str | None
    created_at: datetime
    correlation_id: str
    item_id: str | None
    attempt: int | None
    traceback: str | None = None
    worker: str | None = None
    application: str | None = None

    @property
    def row_key(self) -> str:
        """Return the entry's key within its engine; it is computed, not stored."""
        return history_key(self.correlation_id, self.created_at, self.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryFilter(RecordFilter):
    """Which entries are wanted. ``since`` and ``until`` are about when the attempt ended."""

    status: HistoryStatus | None = None
    operation: str | None = None


ENTRIES = RecordKind(
    "History entry {id}",
    history_table,
    HistoryStatus,
    moment="created_at",
    error="error",
    exact_texts=("input", "output"),
)


class History:
    """The history in a database.

    Every method raises ``ConfigurationError`` when the tables are missing and ``DbConnectionError`` when the database
    does not answer.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def add(self, connection: Connection, entry: NewEntry) -> int:
        """Add an entry to the caller's transaction; it counts once the caller commits.

        Returns its id.

        Raises:
            ConfigurationError: an id is empty or too long; nothing was written.
        """
        moment = database_time(connection.dialect) if entry.created_at is None else entry.created_at
        statement = insert(history_table).values(**history_row(entry), created_at=moment)
        with translated(self._engine, writes=True):
            return int(connection.execute(statement).inserted_primary_key[0])  # type: ignore[index] # a row was inserted

    def add_many(self, connection: Connection, entries: Sequence[NewEntry]) -> None:
        """Add entries to the caller's transaction by one statement; their moment is now."""
        rows = [history_row(entry) for entry in entries]
        if rows:
            with translated(self._engine, writes=True):
                statement = insert(history_table).values(created_at=database_time(connection.dialect))
                connection.execute(statement, rows)

    def in_order(self, wanted: HistoryFilter) -> list[HistoryEntry]:
        """Return what one engine did for one piece of business, oldest first; at most the first 1,000."""
        return self._in_order(and_(*ENTRIES.conditions(wanted)))

    def succeeded_of(self, keys: Collection[SuccessKey], connection: Connection | None = None) -> set[SuccessKey]:
        """Return those of the keys that have a success, by one query."""
        named = {key.correlation_id for key in keys}
        wanted = and_(_columns.correlation_id.in_(named), _columns.status == HistoryStatus.SUCCEEDED.value)
        names = (_columns.engine, _columns.operation, _columns.correlation_id, _columns.application)
        with reading(self._engine, connection) as open_connection:
            found = {SuccessKey(*row) for row in open_connection.execute(select(*names).where(wanted))}
        return {key for key in keys if key in found or key._replace(application=None) in found}

    def count_succeeded(self, engine_name: str, most: int) -> int:
        """Return how many successes of an engine are kept, counted from the newest up to ``most``."""
        columns = history_table.c
        newest = select(columns.id).where(
            columns.engine == engine_name, columns.status == HistoryStatus.SUCCEEDED.value
        )
        some = newest.order_by(columns.id.desc()).limit(most).subquery()
        with reading(self._engine) as connection:
            return int(connection.execute(select(func.count()).select_from(some)).scalar_one())

    def of_item(self, item_id: str, connection: Connection | None = None) -> list[HistoryEntry]:
        """Return the attempts of one item, oldest first; at most the first 1,000."""
        own_name = and_(_columns.correlation_id == item_id, _columns.item_id == item_id)
        other_name = and_(_columns.item_id == item_id, _columns.correlation_id != _columns.item_id)
        return self._in_order(or_(own_name, other_name), connection)  # each half has an index

    def _in_order(self, condition: ColumnElement[bool], connection: Connection | None = None) -> list[HistoryEntry]:
        query = select(history_table).where(condition).order_by(_columns.id).limit(_MOST_OF_ONE_ITEM)
        with reading(self._engine, connection) as open_connection:
            return [entry_of(row) for row in rows_in(open_connection, query)]


def history_row(entry: NewEntry) -> dict[str, object]:
    """Return the columns of an entry, checked, but for when it was created."""
    check_entry_ids(entry)
    row = ENTRIES.row_of(entry._asdict())
    del row["created_at"]
    row["duration_ms"] = max(0, entry.duration_ms)
    return row


def check_entry_ids(entry: NewEntry | HistoryEntry) -> None:
    """Check what an entry is looked up by.

    Raises:
        ConfigurationError: an id is empty or too long.
    """
    ids = {"correlation_id": entry.correlation_id, "instance_id": entry.instance_id, "item_id": entry.item_id}
    check_fits(entry.engine, operation=entry.operation, **ids)


def successes_of(key: SuccessKey) -> HistoryFilter:
    """Return what asks for the successes of a key."""
    return HistoryFilter(**key._asdict(), status=HistoryStatus.SUCCEEDED)


def entry_of(row: StoredRow) -> HistoryEntry:
    """Return the entry in a row.

    Raises:
        QueryError: it cannot be read; the row and the column are named.
    """
    return read(row, _entry, history_table.name, ["id"])


def _entry(row: StoredRow) -> HistoryEntry:
    return HistoryEntry(**ENTRIES.fields_in(row))
