"""Database engines: one per configuration, shared by every thread, with the settings each dialect needs.

Those of the application's database are named pools of one budget (``budget``): ``Pools`` hands them out.
"""

from __future__ import annotations

import atexit
import json
import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar, overload

from sqlalchemy import event
from sqlalchemy.engine import URL, Connection, Engine, create_engine
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from ..core.config import DbConfig, ResolvedDbConfig, parse_url, safe_url
from ..core.errors import ConfigurationError, MissingDependencyError
from ..core.private_files import create_private
from .bounded_pool import BoundedPool
from .budget import Budget, PoolConfig, PoolName
from .deadlines import answering, keep_deadlines, limited
from .drivers import driver_of
from .ended_sessions import replace_read_only_sessions
from .forks import begin_anew_after_forks
from .sessions import connect_args, prepare_sessions

_ALWAYS_AUTOCOMMIT = "holdfast_always_autocommit"
_HAS_WAL = "holdfast_has_wal"
_DRIVERS_PATIENCE_MS = 5000
_PATIENCE_MS = 10_000
_SIZES = ("pool_size", "max_overflow", "poolclass")
_EXTRA_OF_DRIVER = {
    "psycopg": "postgres",
    "pymysql": "mysql",
    "pyodbc": "mssql",
    "MySQLdb": "mysql",
    "psycopg2": "",
}


class EngineProvider:
    """Hands out one lazily made engine per configuration. Safe to share between threads and invocations."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._engines: dict[str, Engine] = {}
        atexit.register(self.dispose_all)
        _providers.add(self)

    def get_engine(self, config: DbConfig) -> Engine:
        """Return the shared engine of ``config``, making it on first use. Does not connect.

        Raises:
            ConfigurationError: the URL or an option is wrong.
            MissingDependencyError: the driver is not installed; the message names the extra.
        """
        key = _cache_key(config)
        with self._lock:
            if key not in self._engines:
                self._engines[key] = self.create_isolated_engine(config)
            return self._engines[key]

    def create_isolated_engine(self, config: DbConfig) -> Engine:
        """Return a new engine that nobody else shares; the caller disposes of it."""
        if "connect_args" in config.engine_kwargs:
            raise ConfigurationError("Pass connect_args as DbConfig.connect_args, not inside engine_kwargs.")
        url = parse_url(ResolvedDbConfig.of(config).connection_url)
        options: dict[str, Any] = {
            "pool_size": config.pool_size,
            "pool_recycle": config.pool_recycle,
            "echo": config.echo,
            "hide_parameters": True,  # else the text of every error holds the rows it was about
        }
        if config.connect_args is not None:
            options["connect_args"] = dict(config.connect_args)
        options.update(config.engine_kwargs)
        named = config if isinstance(config, PoolConfig) and config.budget.is_bounded else None
        if named is not None:
            options = _bounded(named, url, options)
        engine = _create(url, options)
        if named is not None:
            prepare_sessions(engine, named)
        if engine.dialect.name == "sqlite":
            _make_sqlite_transactional(engine)
            event.listen(engine, "do_connect", _create_sqlite_file)
        if engine.driver == "psycopg":
            event.listen(engine, "connect", _refuse_bytes_for_text, insert=True)  # before SQLAlchemy reads the version
        return begin_anew_after_forks(replace_read_only_sessions(keep_deadlines(engine)))

    def dispose_all(self) -> None:
        """Close every pooled connection and forget the engines."""
        with self._lock:
            engines = list(self._engines.values())
            self._engines.clear()
        for engine in engines:
            engine.dispose()


class Pools:
    """The named pools of one application's database, made when they are first asked for."""

    def __init__(self, provider: EngineProvider, budget: Budget) -> None:
        self._provider = provider
        self.budget = budget
        self.config = budget.of(PoolName.HANDLERS)
        self._configs: dict[PoolName, PoolConfig] = {}

    def engine(self, name: PoolName) -> Engine:
        """Return the engine of a pool, or of the one that does its work in such a database. Does not connect."""
        if name not in self._configs:
            self._configs[name] = self._config_of(name)
        return self._provider.get_engine(self._configs[name])

    def _config_of(self, name: PoolName) -> PoolConfig:
        config = self.config.sibling(name)
        if config.pool is PoolName.BEATS:
            config = always_autocommit(config)
        return answering(config) if config.is_ours else config


_providers: weakref.WeakSet[EngineProvider] = weakref.WeakSet()


def _renew_locks() -> None:
    """In the child of a fork: whoever held a lock is not here."""
    for provider in list(_providers):
        provider._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)


def check_engine_provider(given: object) -> None:
    """Check that it is what hands out engines.

    Raises:
        ConfigurationError: it is something else.
    """
    if given is not None and not callable(getattr(given, "get_engine", None)):
        raise ConfigurationError(
            f"engine_provider must be an EngineProvider, not {type(given).__name__}. Make one with EngineProvider(), "
            "and pass it everywhere."
        )


def _create(url: URL, options: dict[str, Any]) -> Engine:
    try:
        return create_engine(url, **options)
    except NoSuchModuleError as error:
        raise ConfigurationError(
            f"'{url.drivername}' in {safe_url(url)} is not a database Holdfast knows. Use sqlite, postgresql, mysql, "
            "mariadb, mssql+pyodbc, or install the SQLAlchemy dialect for it."
        ) from error
    except ModuleNotFoundError as error:
        extra = _EXTRA_OF_DRIVER.get(error.name or "")
        install = f"pip install 'holdfast[{extra}]'" if extra else f"pip install {error.name}"
        raise MissingDependencyError(
            f"The driver for {safe_url(url)} is not installed ({error.name}). Run: {install}"
        ) from error
    except (ArgumentError, TypeError) as error:
        raise ConfigurationError(f"The engine options for {safe_url(url)} are not accepted: {error}") from error


def _bounded(config: PoolConfig, url: URL, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options for a named pool: what the application says of its size is in the budget already."""
    wanted = {name: value for name, value in options.items() if name not in _SIZES}
    driver = url.drivername.partition("+")[2]
    return {**wanted, "poolclass": BoundedPool, "named": config, "connect_args": connect_args(config, url, driver)}


def _make_sqlite_transactional(engine: Engine) -> None:
    """Give SQLite real transactions: the driver must not open or skip one on its own.

    The execution option ``holdfast_begin`` chooses what BEGIN means: ``immediate`` takes the write lock at once, so
    that a transaction that will write never fails half-way with 'database is locked'; ``none`` opens no transaction.
    """

    @event.listens_for(engine, "connect")
    def _no_driver_transactions(dbapi_connection: Any, _record: object) -> None:
        dbapi_connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        kind = connection.get_execution_options().get("holdfast_begin", "deferred")
        if kind != "none":
            connection.exec_driver_sql(f"BEGIN {kind.upper()}")


def _refuse_bytes_for_text(dbapi_connection: Any, _record: object) -> None:
    """Refuse a session in SQL_ASCII: psycopg hands its text out as bytes, and nobody knows which characters they are.

    Raises:
        ConfigurationError: the message names the database and what to do.
    """
    info = dbapi_connection.info
    if info.parameter_status("client_encoding") == "SQL_ASCII":
        database, host, port = info.dbname, info.host, info.port
        dbapi_connection.close()
        raise ConfigurationError(
            f"The database '{database}' on {host}:{port} has the encoding SQL_ASCII, in which text has no known "
            "characters. Add client_encoding=utf8 to the URL's options if all text in it is UTF-8, or move it into a "
            "database of encoding UTF8."
        )


def _create_sqlite_file(_dialect: object, _record: object, arguments: list[Any], options: dict[str, Any]) -> None:
    """Create the file for its owner only, before the driver would for everybody; its WAL gets the same mode.

    A ``file:`` URI says itself whether the file may be created, and is left to the driver.
    """
    file = arguments[0] if arguments else ""
    if file and file != ":memory:" and not options.get("uri"):
        create_private(file)


def use_wal(engine: Engine) -> None:
    """Have the connections of a SQLite engine put their file into WAL mode and be patient.

    In WAL mode readers and the writer do not wait for each other. The mode is kept in the file; while others are busy
    it cannot be changed, and the next connection tries again. Whoever waits for the write lock waits up to ten seconds,
    unless ``connect_args`` has a timeout of its own.
    """
    if not event.contains(engine, "checkout", _turn_wal_on):
        event.listen(engine, "checkout", _turn_wal_on)


def _turn_wal_on(dbapi_connection: Any, record: Any, _proxy: object) -> None:
    if record.info.get(_HAS_WAL):
        return
    [patience] = dbapi_connection.execute("PRAGMA busy_timeout").fetchone()
    if patience == _DRIVERS_PATIENCE_MS:
        dbapi_connection.execute(f"PRAGMA busy_timeout = {_PATIENCE_MS}")
    with suppress(sqlite3.OperationalError):
        [mode] = dbapi_connection.execute("PRAGMA journal_mode = WAL").fetchone()
        record.info[_HAS_WAL] = mode in ("wal", "memory")


_Answer = TypeVar("_Answer")
_Config = TypeVar("_Config", bound=DbConfig)


def autocommit(engine: Engine) -> Connection:
    """Return a connection on which every statement is its own transaction, for ours: one round trip each."""
    if engine.dialect.name == "sqlite":
        return engine.connect().execution_options(holdfast_begin="none")
    if engine.get_execution_options().get(_ALWAYS_AUTOCOMMIT):
        return limited(engine.connect())
    try:
        return _autocommitting(engine)
    except engine.dialect.loaded_dbapi.Error:  # a pooled connection was dead; nothing was sent on it
        return _autocommitting(engine)


def rows_of(cursor: Any) -> list[Sequence[Any]]:
    """Return what a psycopg cursor has to tell; None tells nothing."""
    return [] if cursor is None or cursor.rownumber is None else list(cursor.fetchall())


@overload
def said(
    connection: Connection, sql: str, values: Mapping[str, object] | None = None, *, is_binary: bool = False
) -> list[Sequence[Any]]: ...
@overload
def said(
    connection: Connection,
    sql: str,
    values: Mapping[str, object] | None = None,
    *,
    read: Callable[[Any], _Answer],
    is_binary: bool = False,
) -> _Answer: ...
def said(
    connection: Connection,
    sql: str,
    values: Mapping[str, object] | None = None,
    *,
    read: Callable[[Any], object] = rows_of,
    is_binary: bool = False,
) -> object:
    """Execute a statement of Holdfast's own on a PostgreSQL connection; return what ``read`` makes of its cursor.

    It goes past SQLAlchemy, whose work around it takes longer than the statement, and fails as it would there; unless
    someone listens there to the statements of an engine. With ``is_binary`` the answer comes in binary: cheaper where
    it has many numbers and moments.
    """
    if connection.dispatch.before_cursor_execute:
        result = connection.exec_driver_sql(sql, values or {})
        return read(result.cursor if result.returns_rows else None)
    cursor: Any = None
    try:
        cursor = driver_of(connection).cursor(binary=is_binary)
        cursor.execute(sql, values)
        return read(cursor)
    except connection.dialect.loaded_dbapi.Error as error:
        connection._handle_dbapi_exception(error, sql, values, cursor, None)
    finally:
        if cursor is not None:
            cursor.close()


def always_autocommit(config: _Config) -> _Config:
    """Return a configuration for engines that only ever run single statements.

    MySQL's drivers send several commands to switch to autocommit and back: such an engine switches once per connection.
    """
    if parse_url(ResolvedDbConfig.of(config).connection_url).get_backend_name() not in ("mysql", "mariadb"):
        return config
    options = {
        "isolation_level": "AUTOCOMMIT",
        "skip_autocommit_rollback": True,
        "execution_options": {_ALWAYS_AUTOCOMMIT: True},
    }
    return replace(config, engine_kwargs={**config.engine_kwargs, **options})


def _autocommitting(engine: Engine) -> Connection:
    connection = engine.connect()
    try:
        return limited(connection).execution_options(isolation_level="AUTOCOMMIT")
    except Exception:
        connection.invalidate()
        connection.close()
        raise


_Kind = TypeVar("_Kind", bound=Connection)


@overload
def writing(engine: Engine) -> Connection: ...
@overload
def writing(engine: Engine, kind: type[_Kind]) -> _Kind: ...
def writing(engine: Engine, kind: type[Connection] = Connection) -> Connection:
    """Return a connection whose transactions will write; on SQLite they take the write lock when they begin."""
    connection = kind(engine)
    if engine.dialect.name == "sqlite":
        return connection.execution_options(holdfast_begin="immediate")
    if engine.get_execution_options().get(_ALWAYS_AUTOCOMMIT):  # here a transaction is wanted after all
        return connection.execution_options(isolation_level=engine.dialect.default_isolation_level)
    return connection


def _cache_key(config: DbConfig) -> str:
    def with_type(value: object) -> str:
        return f"<{type(value).__module__}.{type(value).__qualname__}:{value!s}>"

    return json.dumps(
        {
            "url": ResolvedDbConfig.of(config).connection_url,
            "pool": [config.pool_size, config.pool_recycle, config.echo],
            "named": [config.pool, config.budget.max_connections] if isinstance(config, PoolConfig) else None,
            "connect_args": config.connect_args,
            "engine_kwargs": config.engine_kwargs,
        },
        sort_keys=True,
        default=with_type,
    )
