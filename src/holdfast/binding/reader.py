"""``DbReader``: rows by primary key, by query, one by one or as a stream."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import suppress
from itertools import repeat
from typing import Any, TypeVar
from weakref import WeakSet

from sqlalchemy import Table, select, text
from sqlalchemy.engine import CursorResult
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.expression import Executable

from ..core.config import DbConfig
from ..core.driver_errors import MOST_SESSIONS, is_outdated_plan
from ..core.engine import EngineProvider, autocommit
from ..core.errors import ConfigurationError, QueryError
from .base import TableBinding, check_key

_Result = TypeVar("_Result")
_Row = dict[str, object]


class DbReader(TableBinding):
    """Reads rows. Make one per invocation (or use ``with``); not for sharing between threads.

    Every call is a transaction of its own. Nothing here stops a statement that writes: give the database role of a
    reader no right to.

    Args:
        url: the database; ``%NAME%`` stands for an environment variable. Or pass ``db_config``.
        table: the table ``get`` looks into, with ``schema``. Not needed for queries.
        engine_provider: shares connection pools; without one the reader has an engine of its own.
    """

    _error_class = QueryError

    def __init__(
        self,
        *,
        url: str | None = None,
        table: str | None = None,
        schema: str | None = None,
        engine_provider: EngineProvider | None = None,
        db_config: DbConfig | None = None,
    ) -> None:
        super().__init__(url=url, table=table, schema=schema, engine_provider=engine_provider, db_config=db_config)
        self._streams: WeakSet[Generator[_Row, None, None]] = WeakSet()

    def get(self, *, pk: dict[str, object]) -> dict[str, object] | None:
        """Return the row with this primary key, or None.

        Raises:
            ConfigurationError: no table was given, or ``pk`` does not name exactly its key columns.
            QueryError: the database refused the read.
        """

        def find(table: Table) -> list[_Row]:
            check_key(table, pk)
            return self._fetch(select(table).where(*(table.c[name] == value for name, value in pk.items())), {}, _two)

        with self._translated(f"Reading a row of '{self._table_name}'"):
            rows = self._with_table(find)
        if len(rows) > 1:  # SQLite allows NULL in a key, and then as many such rows as you like
            raise QueryError(f"More than one row of '{self._table_name}' has the primary key that get() was given.")
        return rows[0] if rows else None

    def query(self, sql: str, *, params: dict[str, object] | None = None) -> list[dict[str, object]]:
        """Return every row of a query. Write ``:name`` for each of ``params``.

        Raises:
            QueryError: the database refused it.
        """
        return self._run(sql, params, _all)

    def one(self, sql: str, *, params: dict[str, object] | None = None) -> dict[str, object]:
        """Return the one row of a query.

        Raises:
            QueryError: there is none, or more than one.
        """
        row = self.one_or_none(sql, params=params)
        if row is None:
            raise QueryError("one() found no row. Use one_or_none() where that is fine.")
        return row

    def one_or_none(self, sql: str, *, params: dict[str, object] | None = None) -> dict[str, object] | None:
        """Return the one row of a query, or None when there is none.

        Raises:
            QueryError: there is more than one.
        """
        rows = self._run(sql, params, _two)
        if len(rows) > 1:
            raise QueryError("The query returned more than one row where one was expected. Narrow it, or use query().")
        return rows[0] if rows else None

    def scalar(self, sql: str, *, params: dict[str, object] | None = None) -> object | None:
        """Return the first column of the one row, or None when there is none.

        Raises:
            QueryError: there is more than one row.
        """
        row = self.one_or_none(sql, params=params)
        return None if row is None else next(iter(row.values()), None)

    def stream(
        self, sql: str, *, params: dict[str, object] | None = None, chunk_size: int = 1000
    ) -> Generator[dict[str, object], None, None]:
        """Yield the rows of a query without holding them all in memory.

        The connection is in use until the iterator is exhausted or closed, at the latest when this reader is closed.
        MySQL and MariaDB send all rows even so: give a query that may be left early a LIMIT.

        Raises:
            ConfigurationError: ``chunk_size`` is less than 1.
            QueryError: the database refused it, or broke off in the middle.
        """
        if chunk_size < 1:
            raise ConfigurationError(f"stream: chunk_size must be at least 1, not {chunk_size}.")
        rows = self._stream(sql, params, chunk_size)
        self._streams.add(rows)
        return rows

    def close(self) -> None:
        """Close open streams and what this object owns; a shared engine stays open."""
        for rows in list(self._streams):
            with suppress(ValueError):  # another thread is reading from it and will end it
                rows.close()
        super().close()

    def _stream(self, sql: str, params: _Row | None, chunk_size: int) -> Generator[_Row, None, None]:
        options = {"stream_results": True, "max_row_buffer": chunk_size}
        with (
            self._translated("The query"),
            self._engine.connect() as connection,
            connection.execution_options(**options).execute(text(sql), params or {}) as result,
        ):
            names = tuple(result.keys())
            for chunk in result.partitions(chunk_size):
                yield from map(dict, map(zip, repeat(names), chunk))

    def _run(self, sql: str, params: _Row | None, read: Callable[[CursorResult[Any]], _Result]) -> _Result:
        with self._translated("The query"):
            return self._fetch(text(sql), params or {}, read)

    def _fetch(self, statement: Executable, params: _Row, read: Callable[[CursorResult[Any]], _Result]) -> _Result:
        """Run a statement, again in another session while the one it got has a plan from before a schema change."""
        for _ in range(MOST_SESSIONS):
            with autocommit(self._engine) as connection:
                try:
                    return read(connection.execute(statement, params))
                except DBAPIError as error:
                    if not is_outdated_plan(error):
                        raise
                    connection.invalidate(error)
        raise QueryError("The query failed: every session has a plan from before a schema change. Run it again.")


def _all(result: CursorResult[Any]) -> list[_Row]:
    return _as_dicts(result, result.all())


def _two(result: CursorResult[Any]) -> list[_Row]:
    return _as_dicts(result, result.fetchmany(2))


def _as_dicts(result: CursorResult[Any], rows: Any) -> list[_Row]:
    return list(map(dict, map(zip, repeat(tuple(result.keys())), rows)))
