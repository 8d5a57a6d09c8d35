"""What reader and writer share: an engine they borrow or own, the reflected table, and errors in our words.

A table looked up earlier may have changed since. When the database says that a column or table is missing, or a caller
names a column we do not know, the table is looked up once more and the step is tried again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Self, TypeVar

from sqlalchemy import Table
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError, StatementError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from ..core.config import DbConfig, resolve_db_config, safe_url
from ..core.errors import ConfigurationError, DbConnectionError, DbError
from ..database.errors import advice, connection_error, is_connection_failure, reason
from ..database.pools import EngineProvider, check_engine_provider
from ..database.reflection import qualified
from .keys import UnfitKeyError
from .tables import TableCache, is_changed, look_up, looks_stale

_Result = TypeVar("_Result")
_tables = TableCache()
_isolated = EngineProvider()


class TableBinding:
    """A database, and optionally one of its tables. Cheap to make per invocation.

    With an ``engine_provider`` the engine is shared and stays open; without one it is made on first use and closed with
    this object.
    """

    _error_class: type[DbError] = DbError
    _after_a_break = "Run it again."

    def __init__(
        self,
        *,
        url: str | None,
        table: str | None,
        schema: str | None,
        engine_provider: EngineProvider | None,
        db_config: DbConfig | None,
    ) -> None:
        if table is not None and not table:
            raise ConfigurationError("table must not be empty.")
        check_engine_provider(engine_provider)
        self._config = resolve_db_config(url=url, db_config=db_config)
        self._table_name = table
        self._schema = schema
        self._provider = engine_provider
        self._own_engine: Engine | None = None
        self._opening = threading.Lock()  # async handlers may make two calls at once

    def __repr__(self) -> str:
        try:
            where = safe_url(self._config.connection_url)
        except ConfigurationError:
            where = "<not a URL>"
        return f"{type(self).__name__}({self._table_name!r} in {where!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close what this object owns; a shared engine stays open."""
        with self._opening:
            engine, self._own_engine = self._own_engine, None
        if engine is not None:
            engine.dispose()

    @property
    def _engine(self) -> Engine:
        if self._provider is not None:
            return self._provider.get_engine(self._config)
        with self._opening:
            if self._own_engine is None:
                self._own_engine = _isolated.create_isolated_engine(self._config)
            return self._own_engine

    def _with_table(self, step: Callable[[Table], _Result]) -> _Result:
        """Run a step with the reflected table, once more with a fresh one when the table has changed meanwhile."""
        table = self._table()
        try:
            return step(table)
        except (ConfigurationError, StatementError) as error:
            if not looks_stale(error) or self._is_unfit(table, error):
                raise
            fresh = self._look_again(table, error)
            if not is_changed(fresh, table):
                raise
            return step(fresh)

    def _is_unfit(self, table: Table, error: Exception) -> bool:
        """Return whether a key fits no column, as known a moment ago: whoever asks for such must cost no look each."""
        return isinstance(error, UnfitKeyError) and _tables.is_fresh(self._engine, table)

    def _table(self) -> Table:
        return _tables.get(self._engine, self._named_table(), self._schema)

    def _look_again(self, stale: Table, error: Exception) -> Table:
        """Return the table as it is now; ``error`` is what raised the doubt."""
        self._forget(stale)
        return self._table()

    def _forget(self, stale: Table) -> None:
        _tables.forget(self._engine, stale)

    def _look_beside_the_pool(self, stale: Table) -> Table:
        """Return the table as it is now, without waiting for a connection of the pool; ``stale`` when it cannot be had.

        For whoever has one already: all others of the pool may be held by threads in the same position.
        """
        engine = _isolated.create_isolated_engine(self._config)
        try:
            return look_up(engine, stale.name, stale.schema)
        except (DbError, SQLAlchemyError):
            return stale
        finally:
            engine.dispose()

    def _named_table(self) -> str:
        if self._table_name is None:
            raise ConfigurationError(f"This {type(self).__name__} has no table: pass table=… to it, or use query().")
        return self._table_name

    @contextmanager
    def _translated(self, what: str, after: str = "") -> Iterator[None]:
        """Turn driver errors into ours, naming what was done and never the password.

        Drivers let some of Python's own errors through: a number that is too large, text that is no Unicode. ``after``
        is what else to say of a failure.
        """
        try:
            yield
        except DBAPIError as error:
            if error.statement is None and is_connection_failure(error):
                raise connection_error(self._engine.url, error) from error
            if is_connection_failure(error):
                after = f" The connection broke. {self._after_a_break}"
            raise self._error_class(f"{what} failed: {reason(error)}.{advice(error)}{after}") from error
        except PoolTimeoutError as error:
            raise DbConnectionError(
                f"No free connection to {safe_url(self._engine.url)}: raise pool_size in DbConfig, or close readers "
                "and writers sooner."
            ) from error
        except SQLAlchemyError as error:
            raise self._error_class(f"{what} failed: {reason(error)}.{after}") from error
        except (ArithmeticError, TypeError, ValueError) as error:
            raise self._error_class(f"{what} failed: {error}.{after}") from error


def check_key(table: Table, key: Mapping[str, object], without_key: str) -> None:
    """Check that ``key`` names exactly the primary key's columns.

    ``without_key`` is what to do about a table that has none.

    Raises:
        ConfigurationError: it is empty, incomplete, or names another column.
    """
    require_dict(key, "pk")
    name = qualified(table.name, table.schema)
    wanted = [column.name for column in table.primary_key.columns]
    if not wanted:
        raise ConfigurationError(f"Table '{name}' has no primary key, so a row cannot be found by it. {without_key}")
    if set(key) != set(wanted):
        raise ConfigurationError(
            f"The primary key of '{name}' is ({', '.join(wanted)}), but pk has ({', '.join(map(str, key))}). Give each "
            "key column and no other."
        )


def require_dict(given: object, what: str) -> None:
    """Check that it is a dict.

    Raises:
        ConfigurationError: it is something else.
    """
    if not isinstance(given, Mapping):
        raise ConfigurationError(f"{what} must be a dict of columns and their values, not {type(given).__name__}.")


def check_columns(table: Table, columns: Iterable[str], what: str = "data") -> None:
    """Check that the table has the columns.

    Raises:
        ConfigurationError: it lacks one; the message lists those it has.
    """
    names = list(columns)
    if not names:
        raise ConfigurationError(f"{what} must not be empty.")
    known = table.c.keys()
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ConfigurationError(
            f"Table '{qualified(table.name, table.schema)}' has no column(s) {', '.join(map(repr, unknown))} ({what}). "
            f"It has: {', '.join(known)}."
        )
