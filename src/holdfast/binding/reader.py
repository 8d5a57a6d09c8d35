"""``DbReader``: rows by primary key, by query, one by one or as a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from sqlalchemy import Table, select, text
from sqlalchemy.engine import CursorResult

from ..core.config import DbConfig
from ..core.engine import EngineProvider, autocommit
from ..core.errors import QueryError
from .base import TableBinding, check_key

_Result = TypeVar("_Result")


class DbReader(TableBinding):
    """Reads rows. Make one per invocation (or use ``with``); not for sharing between threads.

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

    def get(self, *, pk: dict[str, object]) -> dict[str, object] | None:
        """Return the row with this primary key, or None.

        Raises:
            ConfigurationError: no table was given, or ``pk`` does not name exactly its key columns.
            QueryError: the database refused the read.
        """

        def find(table: Table) -> dict[str, object] | None:
            check_key(table, pk)
            statement = select(table).where(*(table.c[name] == value for name, value in pk.items()))
            with autocommit(self._engine) as connection:
                row = connection.execute(statement).first()
            return None if row is None else dict(zip(table.c.keys(), row, strict=True))

        with self._translated(f"Reading a row of '{self._table_name}'"):
            return self._with_table(find)

    def query(self, sql: str, *, params: dict[str, object] | None = None) -> list[dict[str, object]]:
        """Return every row of a query. Write ``:name`` for each of ``params``.

        Raises:
            QueryError: the database refused it.
        """
        return self._run(sql, params, _all_rows)

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
        rows = self._run(sql, params, _first_two_rows)
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
    ) -> Iterator[dict[str, object]]:
        """Yield the rows of a query without holding them all in memory.

        The connection is in use until the iterator is exhausted or closed.

        Raises:
            QueryError: the database refused it, or broke off in the middle.
        """
        with self._translated("The query"), self._engine.connect() as connection:
            result = connection.execution_options(yield_per=chunk_size).execute(text(sql), params or {})
            names = tuple(result.keys())
            for chunk in result.partitions():
                for row in chunk:
                    yield dict(zip(names, row, strict=True))

    def _run(self, sql: str, params: dict[str, object] | None, read: Callable[[CursorResult[Any]], _Result]) -> _Result:
        with self._translated("The query"), autocommit(self._engine) as connection:
            return read(connection.execute(text(sql), params or {}))


def _all_rows(result: CursorResult[Any]) -> list[dict[str, object]]:
    names = tuple(result.keys())
    return [dict(zip(names, row, strict=True)) for row in result.all()]


def _first_two_rows(result: CursorResult[Any]) -> list[dict[str, object]]:
    names = tuple(result.keys())
    return [dict(zip(names, row, strict=True)) for row in result.fetchmany(2)]
