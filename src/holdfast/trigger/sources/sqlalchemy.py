"""Polling a table or a query of any SQLAlchemy database, in (cursor, key…) order, below a sound horizon."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from sqlalchemy import Select
from sqlalchemy.dialects.mysql import TIMESTAMP as MYSQL_TIMESTAMP
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from ...core.barrier import Reading
from ...core.clock import Clock, SystemClock
from ...core.config import DbConfig, parse_url, resolve_db_config, safe_url
from ...core.cursor import KeysetCursor, OpaqueCursor
from ...core.driver_errors import (
    MOST_SESSIONS,
    connection_error,
    is_connection_failure,
    is_outdated_plan,
    is_schema_change,
    reason,
)
from ...core.engine import EngineProvider, always_autocommit, autocommit, check_engine_provider
from ...core.errors import (
    ConfigurationError,
    CursorSerializationError,
    DbError,
    FetchError,
    SerializationError,
    SourceConfigurationError,
)
from ...core.events import RowBatch
from ...core.types import CursorValue, JsonObject, RawRecord, SourceDescriptor
from . import inspection, lookback, statement
from .fingerprint import SourceDefinition, azure_functions_db_fingerprint, fingerprint
from .horizons.base import UNBOUNDED
from .keyset_parts import keyset_cursor
from .preparation import (
    Prepared,
    SourceSettings,
    check_statement,
    column_names,
    is_current,
    null_error,
    prepare,
)
from .protocol import AdapterCapability, FetchResult
from .text_times import in_layout_of

_Result = TypeVar("_Result")
_CHECK_SECONDS = 60.0
_DEFAULT_PROVIDER = EngineProvider()
_log = logging.getLogger("holdfast.trigger")


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
            check_engine_provider(engine_provider)
        except ConfigurationError as error:
            raise SourceConfigurationError(str(error)) from error
        self._settings = SourceSettings(
            table=table,
            schema=schema,
            query=query,
            cursor_column=cursor_column,
            pk_columns=column_names(pk_columns),
            where=where,
            parameters=dict(parameters or {}),
            cursor_types=tuple(cursor_types or ()),
            horizon=horizon,
            margin=timedelta(seconds=horizon_margin_seconds),
            lookback=lookback,
            lookback_limit=lookback_limit,
            created_column=created_column,
            deleted_column=deleted_column,
        )
        self._settings.check(strategy, operation_mode)
        self._provider = engine_provider or _DEFAULT_PROVIDER
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._prepared: Prepared | None = None
        self._reading: Reading | None = None
        self._exhausted = True
        self._has_started = False
        self._statements: dict[tuple[bool, bool, int, bool], Select[Any]] = {}
        self._descriptor = self._describe(strategy, operation_mode)

    def __repr__(self) -> str:
        return f"SqlAlchemySource({self._descriptor.name!r} in {safe_url(self._url)!r})"

    def _describe(self, strategy: str, operation_mode: str) -> SourceDescriptor:
        settings = self._settings
        definition = SourceDefinition(
            url=self._config.connection_url,
            schema=settings.schema,
            table=settings.table,
            query=settings.query,
            cursor_column=settings.cursor_column,
            pk_columns=settings.pk_columns,
            where=settings.where,
            parameters=settings.parameters,
            strategy=strategy,
            operation_mode=operation_mode,
            cursor_type_names=[cursor_type.__name__ for cursor_type in settings.cursor_types],
        )
        query_name = f"query_{hashlib.sha256((settings.query or '').encode()).hexdigest()[:12]}"
        return SourceDescriptor(
            name=settings.table or query_name,
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
        return self._settings.cursor_column

    @property
    def pk_columns(self) -> list[str]:
        """Return the key columns' names."""
        return list(self._settings.pk_columns)

    def validate(self) -> None:
        """Check the definition against the real database.

        Raises:
            SourceConfigurationError: a table, column, filter, grant or setting is wrong; the message says what to do.
            DbConnectionError: the database does not answer.
        """
        prepared = self._ready()
        check_statement(prepared, self._settings)
        self._check_null_cursors(prepared)

    def open(self) -> None:
        """Look the definition up in the database, unless that was done already."""
        self._ready()

    def close(self) -> None:
        """Forget what was looked up; the engine belongs to its provider."""
        with self._lock:
            self._prepared = None

    def dispose(self) -> None:
        """Do what ``close`` does, under the name that azure-functions-db has for it."""
        self.close()

    def capability(self) -> AdapterCapability:
        """Return what this source can promise."""
        horizon, back = self._ready().horizon.name, self._settings.lookback
        return AdapterCapability(
            detects_updates=horizon != "identity",
            detects_deletes=self._settings.deleted_column is not None,
            safe_from_late_commits=horizon != "none" or back is not None,
            horizon=horizon if back is None else f"{horizon}, lookback {back}",
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
        return self._with_definition(lambda prepared: self._changes(prepared, checkpoint, limit))

    def _changes(self, prepared: Prepared, checkpoint: JsonObject, limit: int) -> FetchResult:
        if not self._has_started:
            self._check_null_cursors(prepared)
        with self._fetching(prepared) as connection:
            reading, is_fresh = self._advanced(prepared, connection)
            result = self._read_below(reading, prepared, connection, checkpoint, limit)
            if not is_fresh and not result.records:  # it was sampled by an earlier fetch, perhaps long ago
                self._exhausted = True
                reading, is_fresh = self._advanced(prepared, connection)
                result = self._read_below(reading, prepared, connection, checkpoint, limit)
        self._exhausted = result.caught_up
        return replace(result, caught_up=result.caught_up and is_fresh, held_back_by=reading.held_back_by)

    def _read_below(
        self, reading: Reading, prepared: Prepared, connection: Connection, checkpoint: JsonObject, limit: int
    ) -> FetchResult:
        if reading.bound is None:
            return FetchResult((), caught_up=True)
        fetch = self._fetch_after if self._settings.lookback is None else self._fetch_window
        return fetch(prepared, connection, checkpoint, reading, limit)

    def count_after(self, checkpoint: JsonObject) -> int:
        """Return how many rows lie after ``checkpoint``: what a reset to it would deliver."""
        return self._with_definition(lambda prepared: self._count(prepared, checkpoint))

    def _count(self, prepared: Prepared, checkpoint: JsonObject) -> int:
        cursor = self._keyset(prepared, checkpoint.get("cursor"))
        counting = prepared.query.count_after(has_cursor=cursor is not None)
        with self._fetching(prepared) as connection:
            return int(connection.execute(counting, self._binds(prepared, cursor)).scalar_one())

    def cursor_from_text(self, value: str, keys: Sequence[str]) -> KeysetCursor:
        """Return the cursor a person typed, with the types of the columns.

        Raises:
            SourceConfigurationError: a value does not fit its column, or the number of keys is wrong.
        """
        if len(keys) != len(self._settings.pk_columns):
            raise SourceConfigurationError(
                f"The key of '{self._descriptor.name}' is ({', '.join(self._settings.pk_columns)}), but {len(keys)} "
                "part(s) were given."
            )
        prepared = self._ready()
        try:
            cursor = self._keyset(prepared, [self._in_column_layout(prepared, value), *keys])
        except SerializationError as error:
            raise SourceConfigurationError(str(error)) from error
        if cursor is None:
            raise SourceConfigurationError("A cursor value is needed.")
        return cursor

    def _in_column_layout(self, prepared: Prepared, value: str) -> str:
        """Return a typed time as the column writes it, where it is kept and compared as text."""
        if not prepared.query.needs_raw_copies or prepared.facts is None or not prepared.facts.is_time:
            return value
        with self._fetching(prepared) as connection:
            sample = connection.execute(prepared.query.newest_cursor(), self._settings.parameters).scalar()
        if not isinstance(sample, str):
            return value
        try:
            return in_layout_of(sample, datetime.fromisoformat(value))
        except ValueError as error:
            raise SourceConfigurationError(
                f"{value!r} is not a time, but column '{self.cursor_column}' holds times such as '{sample}'."
            ) from error

    def _advanced(self, prepared: Prepared, connection: Connection) -> tuple[Reading, bool]:
        """Return the bound to read below: the last one while it still has pages, else a new one."""
        with self._lock:
            if self._reading is not None and not self._exhausted:
                return self._reading, self._reading.bound is UNBOUNDED
            self._reading = prepared.horizon.advance(connection)
            return self._reading, True

    def _fetch_after(
        self, prepared: Prepared, connection: Connection, checkpoint: JsonObject, reading: Reading, limit: int
    ) -> FetchResult:
        cursor = self._keyset(prepared, checkpoint.get("cursor"))
        rows = self._page(prepared, connection, cursor, reading, limit)
        if not rows:
            return FetchResult((), caught_up=True)
        last = prepared.shape.keyset(rows[-1])
        self._require_keys(last)
        return FetchResult(
            RowBatch(prepared.shape, rows),
            next_checkpoint={"cursor": last.to_json()},
            caught_up=len(rows) < limit,
            newest_at=_moment(prepared.facts, last.value),
        )

    def _fetch_window(
        self, prepared: Prepared, connection: Connection, checkpoint: JsonObject, reading: Reading, limit: int
    ) -> FetchResult:
        """Read on from where the pass stands, dropping what was delivered; at its end start another."""
        window = lookback.from_checkpoint(checkpoint, lambda form: self._keyset(prepared, form))
        position = window.position
        is_whole_pass = position is None
        while True:
            rows = self._window_page(prepared, connection, window, position, reading, limit)
            fresh = [row for row in rows if window.is_new(prepared.shape.keyset(row))]
            is_full = len(rows) == limit
            next_position = prepared.shape.keyset(rows[-1]) if is_full else None
            if fresh:
                return self._window_result(prepared, window, fresh, next_position)
            if not is_full and is_whole_pass:
                return FetchResult((), caught_up=True)
            position, is_whole_pass = next_position, is_whole_pass or not is_full

    def _window_page(
        self,
        prepared: Prepared,
        connection: Connection,
        window: lookback.Window,
        position: KeysetCursor | None,
        reading: Reading,
        limit: int,
    ) -> Sequence[Any]:
        if position is not None:
            return self._page(prepared, connection, position, reading, limit)
        start = window.start_of_pass(self._settings.lookback or 0)
        is_inclusive = start is None or not start.keys
        return self._page(prepared, connection, start, reading, limit, inclusive=is_inclusive)

    def _window_result(
        self, prepared: Prepared, window: lookback.Window, fresh: list[Any], position: KeysetCursor | None
    ) -> FetchResult:
        settings = self._settings
        keysets = [prepared.shape.keyset(row) for row in fresh]
        moved = window.after(keysets, position, settings.lookback or 0, settings.lookback_limit)
        if moved.shortened_to is not None and moved.shortened_to != window.shortened_to:
            _log.warning(
                "More than %d rows fall into the lookback of '%s'; it now reaches back only to %s. A row that commits "
                "later than that is missed: raise lookback_limit or use a sound horizon.",
                settings.lookback_limit,
                self._descriptor.name,
                moved.shortened_to.value,
            )
        return FetchResult(
            RowBatch(prepared.shape, fresh),
            next_checkpoint=lookback.to_checkpoint(moved),
            caught_up=position is None,
            newest_at=_moment(prepared.facts, keysets[-1].value),
        )

    def _page(
        self,
        prepared: Prepared,
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
        binds = self._binds(prepared, cursor)
        if key[1]:
            binds[statement.BOUND_PARAM] = reading.bound
        result = connection.execute(self._statements[key], binds)
        if prepared.is_plain is None:
            prepared.is_plain = prepared.query.is_plain(result)
        return statement.plain_rows(result) if prepared.is_plain else result.all()

    def _binds(self, prepared: Prepared, cursor: KeysetCursor | None) -> dict[str, object]:
        own = {} if cursor is None else prepared.query.parameters(cursor.value, cursor.key_values)
        return self._settings.parameters | own

    def _keyset(self, prepared: Prepared, form: object) -> KeysetCursor | None:
        try:
            return keyset_cursor(form, prepared.query, self._settings.pk_columns, self._settings.cursor_types)
        except CursorSerializationError as error:
            raise SerializationError(f"The cursor of '{self._descriptor.name}' cannot be used: {error}") from error

    def _with_definition(self, read: Callable[[Prepared], _Result]) -> _Result:
        """Read with what is known of the table, once more with a fresh look at it when it has changed meanwhile."""
        try:
            return read(self._checked())
        except FetchError as error:
            if not is_schema_change(error.__cause__):
                raise
        self.close()
        for _ in range(MOST_SESSIONS):
            try:
                return read(self._ready())
            except FetchError as error:
                if not is_outdated_plan(error.__cause__):
                    raise
        raise FetchError(f"'{self._descriptor.name}' cannot be read: its schema changes all the time.")

    def _checked(self) -> Prepared:
        """Return the definition; what was looked up long ago is first compared with the database."""
        prepared = self._ready()
        if self._clock.monotonic() - prepared.checked_at < _CHECK_SECONDS:
            return prepared
        with self._translated():
            if not is_current(prepared, self._settings):
                self.close()
        prepared = self._ready()
        self._check_null_cursors(prepared)
        return prepared

    def _ready(self) -> Prepared:
        with self._lock:
            if self._prepared is None:
                engine = self._provider.get_engine(self._reading_config())
                with self._translated():
                    self._prepared = prepare(engine, self._settings, self._descriptor, self._clock.monotonic())
                self._statements.clear()
                self._reading, self._exhausted = None, True
            return self._prepared

    def _reading_config(self) -> DbConfig:
        """MySQL hands out TIMESTAMP in the session's zone, so the source reads through sessions of its own in UTC."""
        if self._url.get_backend_name() not in ("mysql", "mariadb"):
            return self._config
        arguments = {**(self._config.connect_args or {}), "init_command": "SET time_zone = '+00:00'"}
        return always_autocommit(replace(self._config, connect_args=arguments))

    def _check_null_cursors(self, prepared: Prepared) -> None:
        """Look for rows that have no place in the order: until there was a time without any, nothing is delivered."""
        prepared.checked_at = self._clock.monotonic()
        if prepared.may_have_nulls:
            with self._fetching(prepared) as connection:
                if connection.execute(prepared.query.without_place(), self._settings.parameters).first() is not None:
                    raise null_error(prepared, self._settings)
        self._has_started = True

    def _require_keys(self, cursor: KeysetCursor) -> None:
        if any(value is None for value in cursor.key_values):
            raise SourceConfigurationError(
                f"A row of '{self._descriptor.name}' has a NULL key, so it has no place in the order. Choose key "
                "columns that are never NULL."
            )

    @contextmanager
    def _fetching(self, prepared: Prepared) -> Iterator[Connection]:
        try:
            with self._translated(), autocommit(prepared.engine) as connection, _without_outdated_plans(connection):
                yield connection
        except FetchError as error:
            if not is_outdated_plan(error.__cause__):
                self.close()  # the table may have changed: look it up again next time
            raise

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Turn driver errors into ours, naming the source and never the password."""
        try:
            yield
        except DbError:
            raise
        except SQLAlchemyError as error:
            if isinstance(error, DBAPIError) and error.statement is None and is_connection_failure(error):
                raise connection_error(self._url, error) from error
            raise FetchError(
                f"Rows of '{self._descriptor.name}' could not be read from {safe_url(self._url)}: {reason(error)}."
            ) from error


@contextmanager
def _without_outdated_plans(connection: Connection) -> Iterator[None]:
    """Throw the session away when it refuses a plan of its own; a pool may hold others that do."""
    try:
        yield
    except DBAPIError as error:
        if is_outdated_plan(error):
            connection.invalidate(error)
        raise


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
