"""Polling a table or a query of any SQLAlchemy database, in (cursor, key…) order, below a sound horizon."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import ColumnElement, Table
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from ...core.clock import SystemClock
from ...core.config import DbConfig, parse_url, resolve_db_config, safe_url
from ...core.cursor import KeysetCursor, OpaqueCursor
from ...core.errors import (
    ConfigurationError,
    CursorSerializationError,
    DbError,
    FetchError,
    SerializationError,
    SourceConfigurationError,
    UnreadableRowError,
)
from ...core.events import RowBatch
from ...core.keywords import options_of, picked, require_known, takes
from ...core.types import CursorValue, JsonObject, RawRecord, SourceDescriptor
from ...database.barrier import Reading
from ...database.budget import PoolConfig, PoolName
from ...database.errors import (
    MOST_SESSIONS,
    connection_error,
    is_connection_failure,
    is_outdated_plan,
    is_schema_change,
    reason,
)
from ...database.history import History, UnknownHistory, noticed_restores, present_history, session_count
from ...database.kept_types import sent_parameters
from ...database.pools import EngineProvider, always_autocommit, autocommit, check_engine_provider
from ...database.psycopg_values import exact_reading
from . import lookback
from .fingerprint import (
    SourceDefinition,
    azure_functions_db_fingerprints,
    fingerprint,
    former_fingerprints,
    rows_fingerprint,
)
from .horizons.base import UNBOUNDED
from .keyset_parts import keyset_cursor
from .late_rows import missed_rows
from .moments import is_far_ahead
from .moments import moment as _moment
from .pages import Pages
from .preparation import (
    Prepared,
    check_statement,
    is_current,
    null_error,
    prepare,
    present_hidden,
    present_proof,
    refresh_offset,
)
from .protocol import AdapterCapability, FetchResult, Waiting
from .settings import ReadingSettings, SourceSettings, column_name, column_names, one_condition, table_name
from .text_times import in_layout_of
from .update_proof import UpdateProof
from .window_pages import WindowPages, moved_limit

if TYPE_CHECKING:
    from typing import Unpack

    from ..options import SourceOptions

_Result = TypeVar("_Result")
_CHECK_SECONDS = 60.0
_MOMENT = timedelta(seconds=1)
_DEFAULT_PROVIDER = EngineProvider()
_log = logging.getLogger("holdfast.trigger")


class SqlAlchemySource:
    """Rows of a table or a query that changed, found by a cursor column.

    Args:
        url: where the rows are; ``%NAME%`` stands for an environment variable. Or pass ``db_config``.
        table: the table to poll (with ``schema``), by name or as a ``Table``, or pass ``query``: your own SELECT.
        cursor_column: the column that grows with every change.
        pk_columns: columns that tell rows with an equal cursor apart.
        where: a filter, with ``parameters`` for its binds.
        horizon: how far it is safe to read (``auto``, ``xid8``, ``server_time``, ``identity``, ``none``). If left out,
            a column for which nothing is sound is read with a warning; with ``auto`` it is refused.
        horizon_margin_seconds: how long a transaction may need to report its start, for ``server_time``.
        lookback: re-read this window (seconds, timedelta, or an amount for number columns) and drop what was delivered.
        created_column: tells ``insert`` from ``update``: equal to the cursor means insert.
        deleted_column: a row where this is set (or true) is a ``delete``.
        updates: ``trusted`` if you know that every update sets the cursor to the database's clock although the database
            does not show it. It changes what is said about updates, never what is delivered.
        cursor_timezone: the zone whose local time a column without a zone holds, such as ``Europe/Berlin``: that of all
            sessions that write it, or the one furthest behind. If left out, UTC and whatever zones sessions may begin
            in are allowed for, and ``capability().covers`` says of whose rows that is good.

    Safe to share between threads. Connects on first use.
    """

    @takes(ReadingSettings, db_config=None, clock=None)
    def __init__(
        self,
        *,
        url: str | None = None,
        table: str | Table | None = None,
        schema: str | None = None,
        query: str | None = None,
        cursor_column: str | ColumnElement[Any],
        pk_columns: Sequence[str | ColumnElement[Any]],
        where: str | None = None,
        parameters: dict[str, object] | None = None,
        strategy: str = "cursor",
        operation_mode: str = "upsert_only",
        engine_provider: EngineProvider | None = None,
        cursor_types: list[type] | None = None,
        **options: Unpack[SourceOptions],
    ) -> None:
        require_known("SqlAlchemySource", options, ReadingSettings, others=("db_config", "clock"))
        try:
            self._config = resolve_db_config(url=url, db_config=options.get("db_config"))
            self._url = parse_url(self._config.connection_url)
            check_engine_provider(engine_provider)
        except ConfigurationError as error:
            raise SourceConfigurationError(str(error)) from error
        name, schema = table_name(table, schema)
        self._settings = SourceSettings(
            table=name,
            schema=schema,
            query=query,
            cursor_column=column_name(cursor_column) or "",
            pk_columns=column_names(pk_columns),
            where=one_condition(where),
            parameters=dict(parameters or {}),
            cursor_types=tuple(cursor_types or ()),
            **options_of(ReadingSettings, picked(ReadingSettings, options)),
        )
        self._settings.check(strategy, operation_mode)
        self._provider = engine_provider or _DEFAULT_PROVIDER
        self._clock = options.get("clock") or SystemClock()
        self._lock = threading.Lock()
        self._prepared: Prepared | None = None
        self._reading: Reading | None = None
        self._exhausted = True
        self._has_started = False
        self._logged_proof: UpdateProof | None = None
        self._logged_hidden: str | None = None
        self._logged_delay: str | None = None
        self._descriptor = self._describe(strategy, operation_mode)
        sent = sent_parameters(self._url.get_backend_name(), self._settings.parameters)
        self._settings = replace(self._settings, parameters=sent)

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
        former = former_fingerprints(definition)
        query_name = f"query_{hashlib.sha256((settings.query or '').encode()).hexdigest()[:12]}"
        return SourceDescriptor(
            name=settings.table or query_name,
            kind="sqlalchemy",
            fingerprint=fingerprint(definition),
            legacy_fingerprints=(*former, *azure_functions_db_fingerprints(definition)),
            former_fingerprint=former[0],
            rows_fingerprint=rows_fingerprint(definition),
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

    @property
    def settings(self) -> SourceSettings:
        """Return the source as it was declared."""
        return self._settings

    @property
    def database(self) -> Engine:
        """Return the pool it reads through."""
        return self._provider.get_engine(self._reading_config())

    def sessions(self) -> int:
        """Return how many sessions it has begun."""
        return session_count(self.database)

    def is_in(self, database: Engine) -> bool:
        """Return whether its rows are in that database."""
        return self.database.url == database.url

    def history(self, reader: str | None, since: str | None, *, marks: bool = False) -> History | UnknownHistory:
        """Return the history of its database; see ``present_history``.

        Raises:
            FetchError: the database could not be asked; a retry can help.
        """
        with self._translated(), autocommit(self.database) as connection:
            return present_history(connection, reader=reader, since=since, marks=marks)

    def transaction_of(self, checkpoint: JsonObject) -> int | None:
        """Return the transaction id that a checkpoint stands at, where the cursor column holds such."""
        prepared = self._ready()
        if prepared.facts is None or prepared.facts.type_name != "xid8":
            return None
        cursor = self._keyset(prepared, checkpoint.get("cursor"))
        return None if cursor is None else int(str(cursor.value))

    def trust_updates(self) -> None:
        """Take the application's word that every update moves the cursor, as ``updates="trusted"`` does."""
        self._settings = replace(self._settings, updates="trusted")
        self.close()

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
        """Return what this source can promise; what proves updates is looked up each time."""
        prepared, back = self._ready(), self._settings.lookback
        with self._translated():
            proof, hidden = present_proof(prepared, self._settings), present_hidden(prepared, self._settings)
            notices_restore, restore = noticed_restores(prepared.engine)
        horizon, writers = prepared.horizon.name, prepared.horizon.writers
        covers = proof.covers if writers is None else proof.covers + writers.sessions
        misses = missed_rows(horizon, back, self._settings.lookback_limit, prepared.facts)
        return AdapterCapability(
            detects_updates=horizon != "identity" and proof.status != "inserts only",
            detects_deletes=self._settings.deleted_column is not None,
            safe_from_late_commits=misses is None,
            misses=misses,
            horizon=horizon if back is None else f"{horizon}, lookback {back}",
            updates=proof.status,
            updates_because=proof.because,
            prove_updates_with=proof.prove_with,
            covers=covers if hidden is None else f"{covers}, if row level security shows them",
            hidden=hidden,
            notices_restore=notices_restore,
            restore=restore,
        )

    def fetch(self, cursor: CursorValue | None, batch_size: int) -> Sequence[RawRecord]:
        """Return records after an event-style cursor: the method of azure-functions-db."""
        checkpoint = {} if cursor is None else {"cursor": OpaqueCursor(cursor).to_json()}
        return list(self.fetch_changes(checkpoint, batch_size).records)

    def fetch_changes(self, checkpoint: JsonObject, limit: int) -> FetchResult:
        """Return at most ``limit`` changes after ``checkpoint``, in order, strictly below the horizon.

        Raises:
            FetchError: the database could not be read; a retry can help.
            UnreadableRowError: the next row holds what Python has no value for.
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
            if result.caught_up and (self._logged_delay is not None or _hides_rows(reading, self._settings.margin)):
                waiting = self._oldest_waiting(prepared, connection, result.next_checkpoint or checkpoint)
                result = replace(result, waiting=waiting)
        self._exhausted = result.caught_up
        return replace(
            result,
            caught_up=result.caught_up and is_fresh,
            exhausted=result.caught_up,
            held_back_by=reading.held_back_by,
        )

    def _oldest_waiting(self, prepared: Prepared, connection: Connection, checkpoint: JsonObject) -> Waiting | None:
        """Return the first row behind the checkpoint, however unsafe it is to read: it tells how long rows wait."""
        cursor = self._keyset(prepared, checkpoint.get("cursor"))
        row = Pages(prepared, self._settings, connection, Reading(UNBOUNDED)).first(cursor)
        return None if row is None else Waiting(_moment(prepared.facts, prepared.shape.keyset(row).value))

    def _read_below(
        self, reading: Reading, prepared: Prepared, connection: Connection, checkpoint: JsonObject, limit: int
    ) -> FetchResult:
        if reading.bound is None:
            return FetchResult((), caught_up=True)
        fetch = self._fetch_after if self._settings.lookback is None else self._fetch_window
        pages = Pages(prepared, self._settings, connection, reading)
        result, unreadable = fetch(prepared, pages, checkpoint, limit), pages.unreadable()
        if unreadable is None and not result.records:
            self._require_reachable(prepared, reading, checkpoint)
        if unreadable is None:
            return result
        if not result.records:
            raise unreadable
        return replace(result, caught_up=False)  # the next fetch begins with that row

    def _require_reachable(self, prepared: Prepared, reading: Reading, checkpoint: JsonObject) -> None:
        """Refuse to wait silently behind a checkpoint in the future: what changes now comes before it.

        Raises:
            FetchError: a clock was wrong when it was written, or is wrong now.
        """
        cursor = self._keyset(prepared, checkpoint.get("cursor"))
        if cursor is not None and is_far_ahead(prepared.facts, cursor.value, reading.bound):
            raise FetchError(
                f"The checkpoint of '{self._descriptor.name}' is at {cursor.value}, far ahead of the database's clock, "
                f"which lets rows be read up to {reading.bound}: it was wrong once, or is now. Rows that change now "
                "come before it and are not delivered. Mend the clock, then go back with 'holdfast trigger "
                "reset-to-cursor'."
            )

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
            self._log_delay(prepared)
            return self._reading, True

    def _fetch_after(self, prepared: Prepared, pages: Pages, checkpoint: JsonObject, limit: int) -> FetchResult:
        rows = pages.read(self._keyset(prepared, checkpoint.get("cursor")), limit)
        if not rows:
            return FetchResult((), caught_up=True)
        last = prepared.shape.keyset(rows[-1])
        self._require_keys(last)
        return FetchResult(
            RowBatch(prepared.shape, rows),
            next_checkpoint={"cursor": last.to_json()},
            caught_up=len(rows) < limit,
            newest_at=_moment(prepared.facts, last.value),
            oldest_at=_moment(prepared.facts, prepared.shape.keyset(rows[0]).value),
        )

    def _fetch_window(self, prepared: Prepared, pages: Pages, checkpoint: JsonObject, limit: int) -> FetchResult:
        """Read on from where the pass stands, dropping what was delivered; at its end start another."""
        window = lookback.from_checkpoint(checkpoint, lambda form: self._keyset(prepared, form))
        found = WindowPages(prepared, self._settings, pages, window).next(limit)
        if found is None:
            return FetchResult((), caught_up=True)
        self._log_limit(moved_limit(window, found.window))
        return FetchResult(
            RowBatch(prepared.shape, found.rows),
            next_checkpoint=lookback.to_checkpoint(found.window),
            caught_up=not found.is_full,
            newest_at=_moment(prepared.facts, prepared.shape.keyset(found.rows[-1]).value),
            oldest_at=_moment(prepared.facts, prepared.shape.keyset(found.rows[0]).value),
        )

    def _log_limit(self, shortened_to: KeysetCursor | None) -> None:
        if shortened_to is not None:
            _log.warning(
                "More than %d rows fall into the lookback of '%s'; it now reaches back only to %s. A row that commits "
                "later than that is missed: raise lookback_limit or use a sound horizon.",
                self._settings.lookback_limit,
                self._descriptor.name,
                shortened_to.value,
            )

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
            refresh_offset(prepared)
        prepared = self._ready()
        self._check_null_cursors(prepared)
        return prepared

    def _ready(self) -> Prepared:
        with self._lock:
            if self._prepared is None:
                with self._translated():
                    self._prepared = prepare(self.database, self._settings, self._descriptor, self._clock.monotonic())
                self._log_proof(self._prepared.proof)
                self._log_hidden(self._prepared.hidden)
                self._log_delay(self._prepared)
                self._reading, self._exhausted = None, True
            return self._prepared

    def _log_proof(self, proof: UpdateProof) -> None:
        """Log what is proved about updates, at the start and whenever it has changed."""
        if proof != self._logged_proof:
            level = logging.WARNING if proof.status == "not proved" else logging.INFO
            _log.log(level, "Updates of '%s' are %s", self._descriptor.name, proof.sentence())
            self._logged_proof = proof

    def _log_hidden(self, hidden: str | None) -> None:
        """Warn of rows that the role does not see, at the start and whenever that has changed."""
        if hidden is not None and hidden != self._logged_hidden:
            _log.warning("Rows of '%s' may be missed: %s", self._descriptor.name, hidden)
        self._logged_hidden = hidden

    def _log_delay(self, prepared: Prepared) -> None:
        """Warn that rows come late because nobody knows the zone of who writes them, and whenever that has changed."""
        writers = prepared.horizon.writers
        delay = None if writers is None else writers.warning(self.cursor_column)
        if delay is not None and delay != self._logged_delay:
            _log.warning("Rows of '%s' come late: %s", self._descriptor.name, delay)
        self._logged_delay = delay

    def _reading_config(self) -> DbConfig:
        """MySQL hands out TIMESTAMP in the session's zone, so the source reads through sessions of its own in UTC."""
        if self._url.get_backend_name() not in ("mysql", "mariadb"):
            return self._config
        if isinstance(self._config, PoolConfig):
            return always_autocommit(self._config.sibling(PoolName.SOURCES))
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
            with (
                self._translated(),
                autocommit(prepared.engine) as connection,
                exact_reading(connection),
                _without_outdated_plans(connection),
            ):
                yield connection
        except UnreadableRowError:
            raise
        except (FetchError, SourceConfigurationError) as error:
            if not is_outdated_plan(error.__cause__):
                self.close()  # the table may have changed, or this is a standby now: look it up again next time
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


def _hides_rows(reading: Reading, margin: timedelta) -> bool:
    """Return whether rows that are committed may wait behind the bound, for longer than a moment."""
    bound = reading.bound
    is_day = isinstance(bound, date) and not isinstance(bound, datetime)
    is_day = is_day or (isinstance(bound, str) and len(bound) <= len("2026-01-31"))
    is_wide = margin > _MOMENT and bound is not UNBOUNDED
    return bound is None or bool(reading.held_back_by) or is_day or is_wide
