"""History: one entry for every attempt that ended, whatever the workload.

Jobs write theirs in the statement that ends the attempt; other workloads add theirs to their own transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Row, and_, insert, or_, select
from sqlalchemy.engine import Connection, Engine

from ..core.errors import ConfigurationError
from .database import reading, translated
from .exact import given, kept, legible
from .fitting import check_fits
from .paging import DEFAULT_LIMIT, Page, checked_limit, position_in, token_of
from .row_keys import history_key, parsed_history_key
from .schema import PUBLISHER, history_table
from .times import database_time

_KIND = "history"
_MOST_OF_ONE_ITEM = 1000
_columns = history_table.c
SuccessKey = tuple[str, str, str]  # engine, operation, correlation id


class HistoryStatus(StrEnum):
    """How an attempt ended. ``UNKNOWN`` is what another program wrote and we cannot read: it counts as no success."""

    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry:
    """One attempt that ended. ``input`` and ``output`` are JSON."""

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

    @property
    def row_key(self) -> str:
        """Return the entry's key within its engine; it is computed, not stored."""
        return history_key(self.correlation_id, self.created_at, self.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryFilter:
    """Which entries are wanted: those that fit everything that is not None. ``error`` is a part of the error's text."""

    engine: str | None = None
    instance_id: str | None = None
    status: HistoryStatus | None = None
    operation: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    correlation_id: str | None = None
    error: str | None = None


_EVERY_ENTRY = HistoryFilter()


class History:
    """The history in a database.

    Every method raises ``ConfigurationError`` when the tables are missing and ``DbConnectionError`` when the database
    does not answer.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def add(
        self,
        connection: Connection,
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
    ) -> int:
        """Add an entry to the caller's transaction and return its id; it counts once the caller commits.

        Raises:
            ConfigurationError: an id is empty or too long; nothing was written.
        """
        values = history_row(
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
        )
        values["created_at"] = database_time(connection.dialect) if created_at is None else created_at
        with translated(self._engine, writes=True):
            added = connection.execute(insert(history_table).values(values))
            return int(added.inserted_primary_key[0])  # type: ignore[index] # there is one: a row was inserted

    def add_many(self, connection: Connection, entries: Sequence[Mapping[str, Any]]) -> None:
        """Add entries, each with the arguments of ``add``, to the caller's transaction by one statement."""
        rows = [history_row(**entry) for entry in entries]
        if rows:
            with translated(self._engine, writes=True):
                statement = insert(history_table).values(created_at=database_time(connection.dialect))
                connection.execute(statement, rows)

    def by_id(self, entry_id: int, connection: Connection) -> HistoryEntry:
        """Return an entry that is there."""
        with reading(self._engine, connection):
            return _entry(connection.execute(select(history_table).where(_columns.id == entry_id)).one())

    def get(self, engine_name: str, row_key: str) -> HistoryEntry | None:
        """Return one entry; None when there is none of that key, or it is another's.

        Raises:
            ConfigurationError: it is no row key of a history entry.
        """
        key = parsed_history_key(row_key)
        query = select(history_table).where(_columns.id == key.id, _columns.engine == engine_name)
        with reading(self._engine) as connection:
            row = connection.execute(query).one_or_none()
        found = None if row is None else _entry(row)
        return found if found is not None and found.row_key == row_key else None

    def page(
        self, wanted: HistoryFilter = _EVERY_ENTRY, limit: int = DEFAULT_LIMIT, after: str | None = None
    ) -> Page[HistoryEntry]:
        """Return the newest entries that are wanted, or those behind the page that ended with the token ``after``.

        Raises:
            ConfigurationError: the limit or the token is wrong.
        """
        query = select(history_table).where(*_conditions(wanted)).order_by(_columns.id.desc())
        if after is not None:
            query = query.where(_columns.id < position_in(_KIND, after, [int])[0])
        with reading(self._engine) as connection:
            rows = connection.execute(query.limit(checked_limit(limit) + 1)).all()
        items = [_entry(row) for row in rows[:limit]]
        return Page(items, token_of(_KIND, items[-1].id) if len(rows) > limit else None)

    def by_correlation(self, correlation_id: str) -> list[HistoryEntry]:
        """Return what happened to one piece of business, across engines, oldest first; at most the first 1,000."""
        return self._in_order(_columns.correlation_id == correlation_id)

    def of_correlation(self, engine_name: str, correlation_id: str, operation: str | None = None) -> list[HistoryEntry]:
        """Return what one engine did for one piece of business, oldest first; at most the first 1,000."""
        wanted = HistoryFilter(engine=engine_name, operation=operation, correlation_id=correlation_id)
        found = self._in_order(and_(*_conditions(wanted)))
        return [entry for entry in found if _is_exactly(entry, wanted)]

    def succeeded(self, engine_name: str, operation: str, correlation_id: str) -> HistoryEntry | None:
        """Return the last success of an operation for one piece of business; None when there was none."""
        wanted = HistoryFilter(
            engine=engine_name, operation=operation, correlation_id=correlation_id, status=HistoryStatus.SUCCEEDED
        )
        query = select(history_table).where(*_conditions(wanted)).order_by(_columns.id.desc())
        with reading(self._engine) as connection:
            found = map(_entry, connection.execute(query))
            return next((entry for entry in found if _is_exactly(entry, wanted)), None)

    def succeeded_of(self, keys: Collection[SuccessKey]) -> set[SuccessKey]:
        """Return those of (engine, operation, correlation id) that have a success, by one query."""
        named = {correlation_id for _, _, correlation_id in keys}
        wanted = and_(_columns.correlation_id.in_(named), _columns.status == HistoryStatus.SUCCEEDED.value)
        query = select(_columns.engine, _columns.operation, _columns.correlation_id).where(wanted)
        with reading(self._engine) as connection:
            found = {(row[0], row[1], row[2]) for row in connection.execute(query)}
        return found.intersection(keys)

    def of_item(self, item_id: str, connection: Connection | None = None) -> list[HistoryEntry]:
        """Return the attempts of one item, oldest first; at most the first 1,000."""
        own_name = and_(_columns.correlation_id == item_id, _columns.item_id == item_id)
        other_name = and_(_columns.item_id == item_id, _columns.correlation_id != _columns.item_id)
        return self._in_order(or_(own_name, other_name), connection)  # each half has an index

    def _in_order(self, condition: ColumnElement[bool], connection: Connection | None = None) -> list[HistoryEntry]:
        query = select(history_table).where(condition).order_by(_columns.id).limit(_MOST_OF_ONE_ITEM)
        with reading(self._engine, connection) as open_connection:
            return [_entry(row) for row in open_connection.execute(query)]


def history_row(
    *,
    engine: str,
    operation: str,
    status: HistoryStatus,
    duration_ms: int,
    correlation_id: str,
    instance_id: str,
    input: str | None,
    output: str | None,
    error: str | None,
    item_id: str | None,
    attempt: int | None,
) -> dict[str, Any]:
    """Return the columns of an entry, checked, but for when it was created."""
    check_fits(engine, operation=operation, correlation_id=correlation_id, instance_id=instance_id, item_id=item_id)
    return {
        "engine": engine,
        "instance_id": instance_id,
        "operation": operation,
        "status": HistoryStatus(status).value,
        "duration_ms": max(0, duration_ms),
        "input": None if input is None else kept(input),
        "output": None if output is None else kept(output),
        "error": None if error is None else legible(error),
        "correlation_id": correlation_id,
        "item_id": item_id,
        "attempt": attempt,
    }


def _conditions(wanted: HistoryFilter) -> Iterator[ColumnElement[bool]]:
    for name in ("engine", "instance_id", "status", "operation", "correlation_id"):
        value = getattr(wanted, name)
        if value is not None:
            yield _columns[name] == str(value)
    if wanted.since is not None:
        yield _columns.created_at >= wanted.since
    if wanted.until is not None:
        yield _columns.created_at < wanted.until
    if wanted.error is not None:
        yield _columns.error.icontains(wanted.error, autoescape=True)


def _is_exactly(entry: HistoryEntry, wanted: HistoryFilter) -> bool:
    """Return whether the names are the same to the letter: MariaDB takes 'c ' for 'c'."""
    names = (wanted.engine, wanted.operation or entry.operation, wanted.correlation_id)
    return (entry.engine, entry.operation, entry.correlation_id) == names


def _entry(row: Row[Any]) -> HistoryEntry:
    values = dict(row._mapping)
    for name in ("input", "output"):
        if values[name] is not None:
            values[name] = given(values[name])
    try:
        status = HistoryStatus(values.pop("status"))
    except ValueError as error:
        raise ConfigurationError(
            f"History entry {values['id']} has an unknown status ({error}). It was written by a newer version: upgrade."
        ) from error
    return HistoryEntry(status=status, **values)
