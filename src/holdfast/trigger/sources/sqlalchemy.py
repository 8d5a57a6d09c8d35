"""Polling a table or a query of any SQLAlchemy database, in (cursor, key…) order, below a sound horizon."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from sqlalchemy import Select
from sqlalchemy.dialects.mysql import TIMESTAMP as MYSQL_TIMESTAMP
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, SQLAlchemyError

from ...core.clock import Clock, SystemClock
from ...core.config import DbConfig, parse_url, resolve_db_config, safe_url
from ...core.cursor import KeysetCursor, OpaqueCursor, parse_cursor
from ...core.engine import EngineProvider, autocommit
from ...core.errors import (
    ConfigurationError,
    CursorSerializationError,
    DbConnectionError,
    DbError,
    FetchError,
    SerializationError,
    SourceConfigurationError,
)
from ...core.events import RowBatch, RowShape
from ...core.types import CursorValue, JsonObject, RawRecord, SourceDescriptor
from . import inspection, lookback, statement
from .fingerprint import SourceDefinition, azure_functions_db_fingerprint, fingerprint
from .horizons.base import UNBOUNDED, Horizon, Reading, Unbounded
from .horizons.choose import NoSoundHorizonError, choose
from .operations import operation_reader
from .protocol import AdapterCapability, FetchResult

_NULL_CHECK_SECONDS = 60.0
_DEFAULT_PROVIDER = EngineProvider()
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Prepared:
    """What is looked up once, on first use."""

    engine: Engine
    query: statement.KeysetQuery
    shape: RowShape
    horizon: Horizon
    facts: inspection.CursorFacts | None
    null_checked_at: float


class SqlAlchemySource:
    """Rows of a table or a query that changed, found by a cursor column.

    Args:
        url: where the rows are; ``%NAME%`` stands for an environment variable. Or pass ``db_config``.
        table: the table to poll (with ``schema``), or pass ``query``: your own SELECT.
        cursor_column: the column that grows with every change.
        pk_columns: columns that tell rows with an equal cursor apart.
        where: a filter, with ``parameters`` for its binds.
        horizon: how far it is safe to read (``auto``, ``xid8``, ``server_time``, ``identity``, ``none``). If left out,
            a column for which nothing is sound is read with a warning; with ``auto`` it is refused.
        horizon_margin_seconds: how long a transaction may need to report its start, for ``server_time``.
        lookback: re-read this window (seconds, timedelta, or an amount for number columns) and drop what was delivered.
        created_column: tells ``insert`` from ``update``: equal to the cursor means insert.
        deleted_column: a row where this is set (or true) is a ``delete``.

    Safe to share between threads. Connects on first use.
    """

    def __init__(
        self,
        *,
        url: str | None = None,
        table: str | None = None,
        schema: str | None = None,
        query: str | None = None,
        cursor_column: str,
        pk_columns: list[str],
        where: str | None = None,
        parameters: dict[str, object] | None = None,
        strategy: str = "cursor",
        operation_mode: str = "upsert_only",
        engine_provider: EngineProvider | None = None,
        cursor_types: list[type] | None = None,
        db_config: DbConfig | None = None,
        horizon: str | None = None,
        horizon_margin_seconds: float = 0.5,
        lookback: timedelta | float | None = None,
        lookback_limit: int = 5000,
        created_column: str | None = None,
        deleted_column: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        try:
            self._config = resolve_db_config(url=url, db_config=db_config)
            self._url = parse_url(self._config.connection_url)
        except ConfigurationError as error:
            raise SourceConfigurationError(str(error)) from error
        _check_definition(table, query, cursor_column, pk_columns, strategy, operation_mode)
        self._table_name = table
        self._schema = schema
        self._query = query
        self._cursor_column = cursor_column
        self._pk_columns = list(pk_columns)
        self._where = where
        self._parameters = dict(parameters or {})
        self._provider = engine_provider or _DEFAULT_PROVIDER
        self._cursor_types = list(cursor_types or [])
        self._asked_horizon = horizon
        self._margin = timedelta(seconds=horizon_margin_seconds)
        self._lookback = lookback
        self._lookback_limit = lookback_limit
        self._created_column = created_column
        self._deleted_column = deleted_column
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._prepared: _Prepared | None = None
        self._reading: Reading | None = None
        self._exhausted = True
        self._statements: dict[tuple[bool, bool, int, bool], Select[Any]] = {}
        self._descriptor = self._describe(strategy, operation_mode)

    def __repr__(self) -> str:
        return f"SqlAlchemySource({self._descriptor.name!r} in {safe_url(self._url)!r})"

    def _describe(self, strategy: str, operation_mode: str) -> SourceDescriptor:
        definition = SourceDefinition(
            url=self._config.connection_url,
            schema=self._schema,
            table=self._table_name,
            query=self._query,
            cursor_column=self._cursor_column,
            pk_columns=self._pk_columns,
            where=self._where,
            parameters=self._parameters,
            strategy=strategy,
            operation_mode=operation_mode,
            cursor_type_names=[cursor_type.__name__ for cursor_type in self._cursor_types],
        )
        query_name = f"query_{hashlib.sha256((self._query or '').encode()).hexdigest()[:12]}"
        return SourceDescriptor(
            name=self._table_name or query_name,
            kind="sqlalchemy",
            fingerprint=fingerprint(definition),
            legacy_fingerprints=(azure_functions_db_fingerprint(definition),),
        )

    @property
    def source_descriptor(self) -> SourceDescriptor:
        """Return what the source is."""
        return self._descriptor

    @property
    def cursor_column(self) -> str:
        """Return the cursor column's name."""
        return self._cursor_column

    @property
    def pk_columns(self) -> list[str]:
        """Return the key columns' names."""
        return list(self._pk_columns)

    def validate(self) -> None:
        """Check the definition against the real database.

        Raises:
            SourceConfigurationError: a table, column, filter, grant or setting is wrong; the message says what to do.
            DbConnectionError: the database does not answer.
        """
        prepared = self._ready()
        self._check_statement(prepared)
        self._check_null_cursors(prepared)

    def open(self) -> None:
        """Look the definition up in the database, unless that was done already."""
        self._ready()

    def close(self) -> None:
        """Forget what was looked up; the engine belongs to its provider."""
        with self._lock:
            self._prepared = None

    def capability(self) -> AdapterCapability:
        """Return what this source can promise."""
        horizon = self._ready().horizon.name
        return AdapterCapability(
            detects_updates=horizon != "identity",
            detects_deletes=self._deleted_column is not None,
            safe_from_late_commits=horizon != "none" or self._lookback is not None,
            horizon=horizon if self._lookback is None else f"{horizon}, lookback {self._lookback}",
        )

    def fetch(self, cursor: CursorValue | None, batch_size: int) -> Sequence[RawRecord]:
        """Return records after an event-style cursor: the method of azure-functions-db."""
        checkpoint = {} if cursor is None else {"cursor": OpaqueCursor(cursor).to_json()}
        return list(self.fetch_changes(checkpoint, batch_size).records)

    def fetch_changes(self, checkpoint: JsonObject, limit: int) -> FetchResult:
        """Return at most ``limit`` changes after ``checkpoint``, in order, strictly below the horizon.

        Raises:
            FetchError: the database could not be read; a retry can help.
            SourceConfigurationError: the definition is wrong.
            SerializationError: the checkpoint cannot be understood.
        """
        prepared = self._ready()
        self._check_null_cursors_now_and_then(prepared)
        with self._fetching(prepared) as connection:
            reading, is_fresh = self._advanced(prepared, connection)
            if reading.bound is None:
                return FetchResult((), caught_up=True, held_back_by=reading.held_back_by)
            fetch = self._fetch_after if self._lookback is None else self._fetch_window
            result = fetch(prepared, connection, checkpoint, reading, limit)
        self._exhausted = result.caught_up
        return replace(result, caught_up=result.caught_up and is_fresh, held_back_by=reading.held_back_by)

    def count_after(self, checkpoint: JsonObject) -> int:
        """Return how many rows lie after ``checkpoint``: what a reset to it would deliver."""
        prepared = self._ready()
        cursor = self._keyset(prepared, checkpoint.get("cursor"))
        with self._fetching(prepared) as connection:
            counted = connection.execute(
                prepared.query.count_after(has_cursor=cursor is not None),
                self._parameters | self._binds(prepared, cursor),
            )
            return int(counted.scalar_one())

    def cursor_from_text(self, value: str, keys: Sequence[str]) -> KeysetCursor:
        """Return the cursor a person typed, with the types of the columns.

        Raises:
            SourceConfigurationError: a value does not fit its column, or the number of keys is wrong.
        """
        if len(keys) != len(self._pk_columns):
            raise SourceConfigurationError(
                f"The key of '{self._descriptor.name}' is ({', '.join(self._pk_columns)}), but {len(keys)} were given."
            )
        try:
            cursor = self._keyset(self._ready(), [value, *keys])
        except SerializationError as error:
            raise SourceConfigurationError(str(error)) from error
        if cursor is None:
            raise SourceConfigurationError("A cursor value is needed.")
        return cursor

    def _advanced(self, prepared: _Prepared, connection: Connection) -> tuple[Reading, bool]:
        """Return the bound to read below: the last one while it still has pages, else a new one."""
        with self._lock:
            if self._reading is not None and not self._exhausted:
                return self._reading, self._reading.bound is UNBOUNDED
            self._reading = prepared.horizon.advance(connection)
            return self._reading, True

    def _fetch_after(
        self,
        prepared: _Prepared,
        connection: Connection,
        checkpoint: JsonObject,
        reading: Reading,
        limit: int,
    ) -> FetchResult:
        cursor = self._keyset(prepared, checkpoint.get("cursor"))
        rows = self._page(prepared, connection, cursor, reading, limit)
        if not rows:
            return FetchResult((), caught_up=True)
        last = prepared.shape.keyset(rows[-1])
        self._require_usable(last)
        return FetchResult(
            RowBatch(prepared.shape, rows),
            next_checkpoint={"cursor": last.to_json()},
            caught_up=len(rows) < limit,
            newest_at=_moment(prepared.facts, last.value),
        )

    def _fetch_window(
        self,
        prepared: _Prepared,
        connection: Connection,
        checkpoint: JsonObject,
        reading: Reading,
        limit: int,
    ) -> FetchResult:
        back = self._lookback if self._lookback is not None else 0
        window = lookback.from_checkpoint(checkpoint, lambda form: self._keyset(prepared, form))
        position = window.position
        while True:
            if position is None:
                start = window.start_of_pass(back)
                from_start = None if start is None else KeysetCursor(start, ())
                rows = self._page(prepared, connection, from_start, reading, limit, inclusive=True)
            else:
                rows = self._page(prepared, connection, position, reading, limit)
            fresh = [row for row in rows if window.is_new(prepared.shape.keyset(row))]
            is_full = len(rows) == limit
            next_position = prepared.shape.keyset(rows[-1]) if is_full else None
            if fresh:
                return self._window_result(prepared, window, fresh, next_position)
            if not is_full and position is None:
                return FetchResult((), caught_up=True)
            position = next_position

    def _window_result(
        self,
        prepared: _Prepared,
        window: lookback.Window,
        fresh: list[Any],
        position: KeysetCursor | None,
    ) -> FetchResult:
        keysets = [prepared.shape.keyset(row) for row in fresh]
        moved = window.after(keysets, position, self._lookback or 0, self._lookback_limit)
        if moved.shortened_to is not None and moved.shortened_to != window.shortened_to:
            _log.warning(
                "More than %d rows fall into the lookback of '%s'; it now reaches back only to %s. A row that commits "
                "later than that is missed: raise lookback_limit or use a sound horizon.",
                self._lookback_limit,
                self._descriptor.name,
                moved.shortened_to,
            )
        return FetchResult(
            RowBatch(prepared.shape, fresh),
            next_checkpoint=lookback.to_checkpoint(moved),
            caught_up=position is None,
            newest_at=_moment(prepared.facts, keysets[-1].value),
        )

    def _page(
        self,
        prepared: _Prepared,
        connection: Connection,
        cursor: KeysetCursor | None,
        reading: Reading,
        limit: int,
        inclusive: bool = False,
    ) -> Sequence[Any]:
        key = (cursor is not None, reading.bound is not UNBOUNDED, limit, inclusive and cursor is not None)
        if key not in self._statements:
            self._statements[key] = prepared.query.page(
                has_cursor=key[0], has_bound=key[1], limit=limit, inclusive=key[3]
            )
        binds = self._parameters | self._binds(prepared, cursor)
        if key[1]:
            binds[statement.BOUND_PARAM] = reading.bound
        return prepared.query.rows(connection.execute(self._statements[key], binds))

    def _binds(self, prepared: _Prepared, cursor: KeysetCursor | None) -> dict[str, object]:
        return {} if cursor is None else prepared.query.parameters(cursor.value, cursor.key_values)

    def _keyset(self, prepared: _Prepared, form: object) -> KeysetCursor | None:
        """Return the typed cursor of a checkpoint, giving types to one that azure-functions-db or a person wrote."""
        try:
            cursor = parse_cursor(form)
            if cursor is None or isinstance(cursor, KeysetCursor):
                return self._in_key_order(cursor)
            parts = cursor.parts if isinstance(cursor.parts, tuple) else (cursor.parts,)
            columns = (prepared.query.cursor, *prepared.query.keys)
            if len(parts) != len(columns):
                raise CursorSerializationError(f"The stored cursor has {len(parts)} parts, not {len(columns)}.")
            typed = [
                _typed(part, self._python_type(at, column), column, raw=prepared.query.needs_raw_copies)
                for at, (part, column) in enumerate(zip(parts, columns, strict=True))
            ]
        except CursorSerializationError as error:
            raise SerializationError(f"The checkpoint of '{self._descriptor.name}' cannot be used: {error}") from error
        return KeysetCursor(typed[0], tuple(zip(self._pk_columns, typed[1:], strict=True)))

    def _in_key_order(self, cursor: KeysetCursor | None) -> KeysetCursor | None:
        if cursor is None:
            return None
        keys = dict(cursor.keys)
        if set(keys) != set(self._pk_columns):
            raise CursorSerializationError(
                f"its key columns are {sorted(keys)}, but the source's are {sorted(self._pk_columns)}."
            )
        return KeysetCursor(cursor.value, tuple((name, keys[name]) for name in self._pk_columns))

    def _python_type(self, at: int, column: Any) -> type | None:
        if self._cursor_types:
            return self._cursor_types[at] if at < len(self._cursor_types) else None
        try:
            python_type: type = column.type.python_type
        except NotImplementedError:
            return None
        return python_type

    def _ready(self) -> _Prepared:
        with self._lock:
            if self._prepared is None:
                engine = self._provider.get_engine(self._reading_config())
                with _translated(self._url, self._descriptor.name):
                    self._prepared = self._prepare(engine)
                self._statements.clear()
                self._reading, self._exhausted = None, True
            return self._prepared

    def _reading_config(self) -> DbConfig:
        """MySQL hands out TIMESTAMP in the session's zone, so the source reads through sessions of its own in UTC."""
        if self._url.get_backend_name() not in ("mysql", "mariadb"):
            return self._config
        arguments = {**(self._config.connect_args or {}), "init_command": "SET time_zone = '+00:00'"}
        return replace(self._config, connect_args=arguments)

    def _prepare(self, engine: Engine) -> _Prepared:
        facts: inspection.CursorFacts | None = None
        table = None
        dialect = engine.dialect.name
        if self._table_name is not None:
            table = inspection.reflect(engine, self._table_name, self._schema)
            inspection.require_columns(table, self._named_columns())
            facts = inspection.cursor_facts(engine, table, self._cursor_column)
            query = statement.over_table(table, self._cursor_column, self._pk_columns, self._where, dialect)
            self._warn_without_index(engine, table)
        else:
            query = self._over_query(engine, dialect)
        horizon = self._chosen_horizon(dialect, table, facts)
        with autocommit(engine) as connection:
            horizon.prepare(connection)
        return _Prepared(engine, query, self._shape(query), horizon, facts, self._clock.monotonic())

    def _named_columns(self) -> list[str]:
        extra = [name for name in (self._created_column, self._deleted_column) if name]
        return [self._cursor_column, *self._pk_columns, *extra]

    def _over_query(self, engine: Engine, dialect: str) -> statement.KeysetQuery:
        query = (self._query or "").strip().rstrip(";")
        with autocommit(engine) as connection:
            try:
                columns = inspection.column_names_of(connection, query, self._parameters)
            except DBAPIError as error:
                if isinstance(error, (OperationalError, InterfaceError)) and error.connection_invalidated:
                    raise
                raise SourceConfigurationError(
                    f"The query of '{self._descriptor.name}' does not run: {_reason(error)}. It must be one SELECT "
                    "that can stand in a FROM clause."
                ) from error
        missing = [name for name in self._named_columns() if name not in columns]
        if missing:
            raise SourceConfigurationError(
                f"The query of '{self._descriptor.name}' does not return column(s) {', '.join(missing)}. It returns: "
                f"{', '.join(columns)}."
            )
        return statement.over_query(query, columns, self._cursor_column, self._pk_columns, self._where, dialect, {})

    def _shape(self, query: statement.KeysetQuery) -> RowShape:
        names = tuple(column.name for column in query.all_columns)
        keys_at = [names.index(name) for name in self._pk_columns]
        cursor_at = names.index(self._cursor_column)
        operation = operation_reader(names, cursor_at, self._created_column, self._deleted_column)
        if query.needs_raw_copies:
            cursor_at, keys_at = len(names), [len(names) + 1 + at for at in range(len(keys_at))]
        keys = tuple(zip(self._pk_columns, keys_at, strict=True))
        return RowShape(self._descriptor, names, cursor_at, keys, operation)

    def _chosen_horizon(self, dialect: str, table: Any, facts: inspection.CursorFacts | None) -> Horizon:
        try:
            return choose(self._asked_horizon or "auto", dialect, table, facts, self._margin)
        except NoSoundHorizonError as error:
            if self._lookback is None and self._asked_horizon == "auto":
                raise
            if self._lookback is None:
                _log.warning("%s Until then '%s' is read without a horizon.", error, self._descriptor.name)
            return Unbounded()

    def _warn_without_index(self, engine: Engine, table: Any) -> None:
        create = inspection.missing_index(engine, table, self._cursor_column, self._pk_columns)
        if create is not None:
            _log.warning(
                "Cursor column '%s' of table '%s' has no index, so every poll reads the whole table. Run: %s",
                self._cursor_column,
                self._table_name,
                create,
            )

    def _check_statement(self, prepared: _Prepared) -> None:
        probe = prepared.query.page(has_cursor=False, has_bound=False, limit=1)
        try:
            with autocommit(prepared.engine) as connection:
                connection.execute(probe, self._parameters)
        except DBAPIError as error:
            if error.connection_invalidated:
                raise _connection_error(self._url, error) from error
            raise SourceConfigurationError(self._statement_message(error)) from error
        except SQLAlchemyError as error:
            raise SourceConfigurationError(
                f"The source '{self._descriptor.name}' cannot be read: {_reason(error)}. Check where and parameters."
            ) from error

    def _statement_message(self, error: DBAPIError) -> str:
        if self._where is not None:
            return (
                f"The where clause of '{self._descriptor.name}' does not work: {_reason(error)}. Clause: "
                f"{self._where}. Write a plain SQL condition, with :name for each of parameters."
            )
        return f"The source '{self._descriptor.name}' cannot be read: {_reason(error)}. Check its columns and grants."

    def _check_null_cursors(self, prepared: _Prepared) -> None:
        prepared.null_checked_at = self._clock.monotonic()
        if prepared.facts is not None and not prepared.facts.nullable:
            return
        with self._fetching(prepared) as connection:
            found = connection.execute(prepared.query.null_cursor(), self._parameters).first()
        if found is not None:
            raise SourceConfigurationError(
                f"'{self._descriptor.name}' has rows whose cursor '{self._cursor_column}' is NULL: they have no place "
                "in the order and would never be delivered. Fill the column and make it NOT NULL, or leave those rows "
                f'out with where="{self._cursor_column} IS NOT NULL".'
            )

    def _check_null_cursors_now_and_then(self, prepared: _Prepared) -> None:
        if self._clock.monotonic() - prepared.null_checked_at >= _NULL_CHECK_SECONDS:
            self._check_null_cursors(prepared)

    def _require_usable(self, cursor: KeysetCursor) -> None:
        if any(value is None for value in cursor.key_values):
            raise SourceConfigurationError(
                f"A row of '{self._descriptor.name}' has a NULL key, so it has no place in the order. Choose key "
                "columns that are never NULL."
            )

    @contextmanager
    def _fetching(self, prepared: _Prepared) -> Iterator[Connection]:
        try:
            with _translated(self._url, self._descriptor.name), autocommit(prepared.engine) as connection:
                yield connection
        except FetchError:
            self.close()  # the table may have changed: look it up again next time
            raise


def _check_definition(
    table: str | None,
    query: str | None,
    cursor_column: str,
    pk_columns: list[str],
    strategy: str,
    operation_mode: str,
) -> None:
    for broken, message in (
        (bool(table) == bool(query), "Exactly one of 'table' or 'query' must be provided."),
        (not cursor_column, "cursor_column must not be empty."),
        (
            not pk_columns,
            "pk_columns must not be empty: name the columns that tell rows with an equal cursor apart.",
        ),
        (strategy != "cursor", f"Unsupported strategy: '{strategy}'. Only 'cursor' is supported."),
        (
            operation_mode != "upsert_only",
            f"Unsupported operation_mode: '{operation_mode}'. Only 'upsert_only' is supported.",
        ),
    ):
        if broken:
            raise SourceConfigurationError(message)


@contextmanager
def _translated(url: Any, name: str) -> Iterator[None]:
    """Turn driver errors into ours, naming the source and never the password."""
    try:
        yield
    except DbError:
        raise
    except DBAPIError as error:
        if isinstance(error, (OperationalError, InterfaceError)) and error.statement is None:
            raise _connection_error(url, error) from error
        raise FetchError(f"Rows of '{name}' could not be read from {safe_url(url)}: {_reason(error)}.") from error
    except SQLAlchemyError as error:
        raise FetchError(f"Rows of '{name}' could not be read from {safe_url(url)}: {_reason(error)}.") from error


def _connection_error(url: Any, error: DBAPIError) -> DbConnectionError:
    return DbConnectionError(
        f"The database {safe_url(url)} does not answer: {_reason(error)}. Check that it runs, the host and port, and "
        "the credentials."
    )


def _reason(error: SQLAlchemyError) -> str:
    """Return the first line of what the driver said: the rest may hold the statement and its values."""
    return str(getattr(error, "orig", None) or error).strip().split("\n", 1)[0].rstrip(".")


def _moment(facts: inspection.CursorFacts | None, value: object) -> datetime | None:
    """Return the row's time in UTC where the column surely tells it."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value
    if facts is None or not facts.is_time:
        return None
    if isinstance(facts.type, MYSQL_TIMESTAMP) and isinstance(value, datetime):
        return value.replace(tzinfo=UTC)
    if isinstance(value, str) and facts.has_server_time_default:
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            return None
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return None


_FROM_ISO: dict[type, Any] = {
    datetime: datetime.fromisoformat,
    date: date.fromisoformat,
    time: time.fromisoformat,
    Decimal: Decimal,
    UUID: UUID,
    int: int,
    float: float,
}


def _typed(part: object, python_type: type | None, column: Any, *, raw: bool) -> object:
    """Return an untyped cursor part as the column's type.

    Raises:
        CursorSerializationError: it does not fit.
    """
    if part is None:
        raise CursorSerializationError("a part of it is NULL.")
    if python_type is None or isinstance(part, python_type) or python_type not in _FROM_ISO:
        return part
    try:
        value = _FROM_ISO[python_type](part if isinstance(part, str) else str(part))
    except (ValueError, ArithmeticError) as error:
        raise CursorSerializationError(
            f"{part!r} is not a valid {python_type.__name__} for column '{column.name}'."
        ) from error
    if isinstance(value, datetime):
        return _datetime_for(value, column, raw)
    return value if not raw or isinstance(value, (int, float)) else str(part)


def _datetime_for(value: datetime, column: Any, raw: bool) -> object:
    if raw:  # SQLite keeps times as text; the shorter form sorts first, so at worst rows come twice
        timespec = "microseconds" if value.microsecond else "seconds"
        return value.replace(tzinfo=None).isoformat(sep=" ", timespec=timespec)
    wants_zone = getattr(column.type, "timezone", None)
    if wants_zone is True and value.tzinfo is None:
        raise CursorSerializationError(f"'{value}' has no time zone, but column '{column.name}' has one.")
    if wants_zone is False and value.tzinfo is not None:
        raise CursorSerializationError(f"'{value}' has a time zone, but column '{column.name}' has none.")
    return value
