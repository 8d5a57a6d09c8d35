"""What reader and writer share: an engine they borrow or own, the reflected table, and errors in our words.

A table looked up earlier may have changed since. When the database says that a column or table is missing, or a caller
names a column we do not know, the table is looked up once more and the step is tried again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

from sqlalchemy import Table
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from ..core.config import DbConfig, resolve_db_config, safe_url
from ..core.driver_errors import connection_error, is_connection_failure, reason
from ..core.engine import EngineProvider
from ..core.errors import ConfigurationError, DbConnectionError, DbError
from ..core.reflection import TableCache, qualified

_Result = TypeVar("_Result")
_tables = TableCache()
_isolated = EngineProvider()

_UNDEFINED_SQLSTATES = frozenset({"42703", "42P01", "42S22", "42S02"})
_UNDEFINED_MYSQL = frozenset({1054, 1146})


class TableBinding:
    """A database, and optionally one of its tables. Not for sharing between threads; cheap to make per invocation.

    With an ``engine_provider`` the engine is shared and stays open; without one it is made on first use and closed with
    this object.
    """

    _error_class: type[DbError] = DbError

    def __init__(
        self,
        *,
        url: str | None,
        table: str | None,
        schema: str | None,
        engine_provider: EngineProvider | None,
        db_config: DbConfig | None,
    ) -> None:
        self._config = resolve_db_config(url=url, db_config=db_config)
        self._table_name = table
        self._schema = schema
        self._provider = engine_provider
        self._own_engine: Engine | None = None

    def __repr__(self) -> str:
        where = safe_url(self._config.connection_url)
        return f"{type(self).__name__}({self._table_name!r} in {where!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close what this object owns; a shared engine stays open."""
        if self._own_engine is not None:
            self._own_engine.dispose()
            self._own_engine = None

    @property
    def _engine(self) -> Engine:
        if self._provider is not None:
            return self._provider.get_engine(self._config)
        if self._own_engine is None:
            self._own_engine = _isolated.create_isolated_engine(self._config)
        return self._own_engine

    def _with_table(self, step: Callable[[Table], _Result], *, may_retry: bool = True) -> _Result:
        """Run a step with the reflected table, once more with a fresh one when the table has changed meanwhile."""
        table = self._table()
        try:
            return step(table)
        except (ConfigurationError, DBAPIError) as error:
            if not _may_be_stale(error):
                raise
            _tables.forget(self._engine, self._named_table(), self._schema)
            if not may_retry:
                raise
            fresh = self._table()
            if _columns(fresh) == _columns(table):
                raise
            return step(fresh)

    def _table(self) -> Table:
        return _tables.get(self._engine, self._named_table(), self._schema, ConfigurationError)

    def _named_table(self) -> str:
        if self._table_name is None:
            raise ConfigurationError(f"This {type(self).__name__} has no table: pass table=… to it, or use query().")
        return self._table_name

    @contextmanager
    def _translated(self, what: str) -> Iterator[None]:
        """Turn driver errors into ours, naming what was done and never the password."""
        try:
            yield
        except DBAPIError as error:
            if error.statement is None and is_connection_failure(error):
                raise connection_error(self._engine.url, error) from error
            raise self._error_class(f"{what} failed: {reason(error)}.") from error
        except PoolTimeoutError as error:
            raise DbConnectionError(
                f"No free connection to {safe_url(self._engine.url)}: raise pool_size in DbConfig, or close readers "
                "and writers sooner."
            ) from error
        except SQLAlchemyError as error:
            raise self._error_class(f"{what} failed: {reason(error)}.") from error


def check_key(table: Table, key: Mapping[str, object]) -> None:
    """Check that ``key`` names exactly the primary key's columns.

    Raises:
        ConfigurationError: it is empty, incomplete, or names another column.
    """
    name = qualified(table.name, table.schema)
    wanted = [column.name for column in table.primary_key.columns]
    if not wanted:
        raise ConfigurationError(f"Table '{name}' has no primary key, so a row cannot be found by it. Use query().")
    missing = [column for column in wanted if column not in key]
    foreign = [column for column in key if column not in wanted]
    if missing or foreign:
        raise ConfigurationError(
            f"The primary key of '{name}' is ({', '.join(wanted)}), but pk has ({', '.join(key)}). Give each key "
            "column and no other."
        )


def check_columns(table: Table, columns: Iterator[str] | Mapping[str, object], what: str = "data") -> None:
    """Check that the table has the columns.

    Raises:
        ConfigurationError: it lacks one; the message lists those it has.
    """
    names = list(columns)
    if not names:
        raise ConfigurationError(f"{what} must not be empty.")
    unknown = [name for name in names if name not in table.c]
    if unknown:
        raise ConfigurationError(
            f"Table '{qualified(table.name, table.schema)}' has no column(s) {', '.join(map(repr, unknown))} ({what}). "
            f"It has: {', '.join(table.c.keys())}."
        )


def _columns(table: Table) -> list[tuple[str, str]]:
    return [(column.name, repr(column.type)) for column in table.columns]


def _may_be_stale(error: Exception) -> bool:
    """Return whether the error is what a changed table looks like."""
    if isinstance(error, ConfigurationError):
        return True
    original: Any = getattr(error, "orig", None)
    if getattr(original, "sqlstate", None) in _UNDEFINED_SQLSTATES:
        return True
    arguments = getattr(original, "args", None) or ("",)
    said = str(original).lower()
    return (
        arguments[0] in _UNDEFINED_MYSQL
        or "no such column" in said
        or "has no column" in said
        or ("no such table" in said)
    )
