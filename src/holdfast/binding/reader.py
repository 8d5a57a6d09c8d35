"""``DbReader``: rows by primary key, by query, one by one or as a stream."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing, suppress
from itertools import repeat
from typing import Any, TypeVar
from weakref import WeakSet

from sqlalchemy import Column, ColumnElement, Table, bindparam, select, text
from sqlalchemy.engine import Connection, CursorResult, Engine
from sqlalchemy.exc import DBAPIError

from ..core.config import DbConfig
from ..core.errors import ConfigurationError, QueryError
from ..database.errors import MOST_SESSIONS, is_outdated_plan
from ..database.fetching import all_rows, chunks, fetched
from ..database.kept_types import sent_parameters
from ..database.pools import EngineProvider, autocommit
from ..database.psycopg_values import exact_reading
from ..database.unreadable import Fetched, Rows
from .base import TableBinding, check_key, require_dict
from .keys import fitting_keys

_Result = TypeVar("_Result")
_Row = dict[str, object]


class DbReader(TableBinding):
    """Reads rows. Make one per invocation, or use ``with``.

    Every call is a transaction of its own, and what raises is rolled back. A statement that writes and returns rows
    (``INSERT … RETURNING``) is committed, except by ``stream``: give the database role of a reader no right to write
    where it should not.

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
            ConfigurationError: no table was given, or ``pk`` does not name exactly its key columns, with values of
                their types.
            QueryError: the database refused the read.
        """

        def find(table: Table) -> list[_Row]:
            check_key(table, pk, "Use query().")
            [key] = fitting_keys(table, [pk])
            statement = select(table).where(*(_is(table.c[name], value) for name, value in key.items()))
            types = [column.type for column in table.c]

            def read(connection: Connection) -> list[_Row]:
                def execute() -> CursorResult[Any]:
                    return connection.execute(statement)

                result = execute()
                found = fetched(result, _at_most(2), types=types, again=execute)
                return _dicts(result, found, f"Row {pk} of '{self._table_name}'")

            return self._fetch(autocommit, read)

        with self._translated(f"Reading a row of '{self._table_name}'"):
            rows = self._with_table(find)
        if len(rows) > 1:  # SQLite allows NULL in a key, and then as many such rows as you like
            raise QueryError(f"More than one row of '{self._table_name}' has the primary key that get() was given.")
        return rows[0] if rows else None

    def query(self, sql: str, *, params: dict[str, object] | None = None) -> list[dict[str, object]]:
        """Return every row of a query. Write ``:name`` for each of ``params``.

        Raises:
            ConfigurationError: ``params`` is no dict.
            QueryError: the database refused it, it returns no rows, or it is more than one statement.
        """
        return self._run(sql, params)

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
        rows = self._run(sql, params, most=1)
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
        MySQL and MariaDB send all rows even so: give a query that may be left early a LIMIT. Nothing is committed.

        Raises:
            ConfigurationError: ``chunk_size`` is less than 1.
            QueryError: the database refused it, broke off in the middle, or a row cannot be read; those before it come
                first.
        """
        if chunk_size < 1:
            raise ConfigurationError(f"stream: chunk_size must be at least 1, not {chunk_size}.")
        _check_params(params)
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
            exact_reading(connection),
            connection.execution_options(**options).execute(text(sql), self._sent(params)) as result,
            closing(chunks(result, chunk_size)) as parts,
        ):
            _require_rows(result)
            names = tuple(result.keys())
            for number, chunk in enumerate(parts):
                yield from map(dict, map(zip, repeat(names), chunk.rows))
                _require_readable(names, chunk, "A row of the result", number * chunk_size)

    def _run(self, sql: str, params: _Row | None, most: int | None = None) -> list[_Row]:
        """Return the rows of the user's statement, committed once they are known to be what was asked for."""
        _check_params(params)

        def run(connection: Connection) -> list[_Row]:
            def execute() -> CursorResult[Any]:
                return connection.execute(text(sql), self._sent(params))

            result = execute()
            _require_rows(result)
            read = all_rows if most is None else _at_most(most + 1)
            rows = _dicts(result, fetched(result, read, again=execute), "A row of the result")
            if most is not None and len(rows) > most:
                raise QueryError(
                    "The query returned more than one row where one was expected. Narrow it, or use query()."
                )
            connection.commit()
            return rows

        with self._translated("The query"):
            return self._fetch(Engine.connect, run)

    def _sent(self, params: _Row | None) -> _Row:
        return sent_parameters(self._engine.dialect.name, params or {})

    def _fetch(self, connect: Callable[[Engine], Connection], read: Callable[[Connection], _Result]) -> _Result:
        """Read, again in another session while the one it got has a plan from before a schema change."""
        for _ in range(MOST_SESSIONS):
            with connect(self._engine) as connection, exact_reading(connection):
                try:
                    return read(connection)
                except DBAPIError as error:
                    if not is_outdated_plan(error):
                        raise
                    connection.invalidate(error)
        raise QueryError("The query failed: every session has a plan from before a schema change. Run it again.")


def _is(column: Column[Any], value: object) -> ColumnElement[bool]:
    """Return the condition on a key's column, the value taken for one of the column's type, as in updates."""
    return column.is_(None) if value is None else column == bindparam(None, value, type_=column.type)


def _check_params(params: object) -> None:
    if params is not None:
        require_dict(params, "params")


def _require_rows(result: CursorResult[Any]) -> None:
    """Refuse what is no query. The caller has not committed it yet.

    Raises:
        QueryError: it returns no rows, or it is several statements, of which psycopg shows the first one's rows.
    """
    if result.dialect.driver == "psycopg" and result.context.cursor.nextset():
        raise QueryError("The query failed: it is more than one statement. Nothing of it was kept.")
    if not result.returns_rows:
        raise QueryError(
            "The query failed: this statement returns no rows, so it is not for a reader. Nothing of it was kept; use "
            "DbWriter to write."
        )


def _at_most(count: int) -> Callable[[CursorResult[Any]], Rows]:
    return lambda result: result.fetchmany(count)


def _dicts(result: CursorResult[Any], found: Fetched, what: str) -> list[_Row]:
    names = tuple(result.keys())
    _require_readable(names, found, what)
    return list(map(dict, map(zip, repeat(names), found.rows)))


def _require_readable(names: Sequence[str], found: Fetched, what: str, before: int = 0) -> None:
    """Refuse a row that holds what Python has no value for; ``before`` are the rows that came earlier.

    Raises:
        QueryError: it does; the message names the column.
    """
    if found.bad is not None:
        number = f" (number {before + found.bad.number})" if what.startswith("A row") else ""
        raise QueryError(
            f"{what}{number} cannot be read: its {found.bad.problem(names)}. Mend it, or read the column in another "
            "form, with CAST(… AS …)."
        )
