"""The tables bindings work with: looked up once per engine, and again after a while or when found to be out of date.

A column that was added shows in no error, so what is known of a table is not kept for ever.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from sqlalchemy import JSON, FetchedValue, Float, Index, Table
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError, StatementError
from sqlalchemy.sql.expression import quoted_name

from ..core.clock import Clock, SystemClock
from ..core.errors import ConfigurationError
from ..database.errors import is_schema_change
from ..database.faithful_types import faithful
from ..database.reflection import reflect_table

KEEP_SECONDS = 30.0
DIALECT = "holdfast_dialect"
_FRESH_SECONDS = 1.0


@dataclass(slots=True)
class _Known:
    """One table's place in the cache, with the turn of whoever looks it up."""

    turn: threading.Lock = field(default_factory=threading.Lock)
    table: Table | None = None
    at: float = 0.0


class TableCache:
    """Reflected tables by engine. Safe between threads; an engine that is gone takes its tables with it.

    A slow database keeps nobody waiting but those who want the same table of it.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._known: WeakKeyDictionary[Engine, dict[tuple[str | None, str], _Known]] = WeakKeyDictionary()

    def get(self, engine: Engine, table: str, schema: str | None) -> Table:
        """Return the table, looking it up when it is not known or was looked up long ago.

        Raises:
            ConfigurationError: there is no such table.
        """
        known = self._place(engine, table, schema)
        with known.turn:
            found = known.table
            if found is None or self._clock.monotonic() - known.at > KEEP_SECONDS:
                found = known.table = look_up(engine, table, schema)
                known.at = self._clock.monotonic()
            return found

    def is_fresh(self, engine: Engine, table: Table) -> bool:
        """Return whether the table was looked up a moment ago: another look would hardly find another type."""
        with self._lock:
            found = [known for known in self._known.get(engine, {}).values() if known.table is table]
        return any(self._clock.monotonic() - known.at < _FRESH_SECONDS for known in found)

    def forget(self, engine: Engine, stale: Table) -> None:
        """Look the table up again next time, unless someone has done so since ``stale`` was handed out."""
        with self._lock:
            for known in self._known.get(engine, {}).values():
                if known.table is stale:
                    known.table = None

    def _place(self, engine: Engine, table: str, schema: str | None) -> _Known:
        with self._lock:
            return self._known.setdefault(engine, {}).setdefault((schema, table), _Known())


def look_up(engine: Engine, table: str, schema: str | None) -> Table:
    """Return the table as the database has it.

    None in a JSON column means NULL, as in any other; a floating-point number is never rounded into a decimal; a value
    that would be stored as another one is converted or refused. A key that a row lacks may come from the database: it
    knows, whereas SQLAlchemy would warn of every such row.

    Raises:
        ConfigurationError: there is no such table.
    """
    found = reflect_table(engine, exact(table), schema, ConfigurationError)
    found.info[DIALECT] = engine.dialect.name
    for column in found.columns:
        column.name = exact(column.name)
        if isinstance(column.type, JSON):
            column.type.none_as_null = True
        if isinstance(column.type, Float):
            column.type.asdecimal = False
        if column.primary_key and column.server_default is None and column is not found.autoincrement_column:
            column.server_default = FetchedValue()
        column.type = faithful(column.type, engine.dialect.name, column.name)
    return found


def exact(name: str) -> str:
    """Return the name such that SQLAlchemy quotes it where it must: it takes one that ends in a newline for plain."""
    return quoted_name(name, quote=True) if name.endswith("\n") else name


def looks_stale(error: Exception) -> bool:
    """Return whether the error is what a table that changed since it was looked up gives rise to."""
    return never_sent(error) or is_schema_change(error)


def never_sent(error: Exception) -> bool:
    """Return whether a statement failed before the database has seen any of it."""
    return isinstance(error, (ConfigurationError, StatementError)) and not isinstance(error, DBAPIError)


def is_changed(fresh: Table, known: Table) -> bool:
    """Return whether two looks at a table saw different things."""
    return _shape(fresh) != _shape(known)


def _shape(table: Table) -> tuple[object, ...]:
    columns = [(column.name, repr(column.type), column.nullable) for column in table.columns]
    keys = [column.name for column in table.primary_key.columns]
    return columns, keys, unique_keys(table)


def unique_keys(table: Table) -> set[frozenset[str]]:
    """Return the sets of columns that name at most one row each, not those of which only the beginning is unique."""
    indexes = [index.columns for index in table.indexes if index.unique and not _is_of_beginnings(index)]
    return {frozenset(column.name for column in columns) for columns in (table.primary_key.columns, *indexes)}


def _is_of_beginnings(index: Index) -> bool:
    return any(index.dialect_kwargs.get(f"{dialect}_length") for dialect in ("mysql", "mariadb"))
