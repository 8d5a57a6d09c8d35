"""Database engines: one per configuration, shared by every thread, with the settings each dialect needs."""

from __future__ import annotations

import atexit
import functools
import json
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar, overload

from sqlalchemy import event
from sqlalchemy.engine import URL, Connection, Engine, create_engine
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from .config import DbConfig, ResolvedDbConfig, parse_url, safe_url
from .errors import ConfigurationError, MissingDependencyError

_ALWAYS_AUTOCOMMIT = "holdfast_always_autocommit"
_HAS_WAL = "holdfast_has_wal"
_DRIVERS_PATIENCE_MS = 5000
_PATIENCE_MS = 10_000
_FROZEN_SECONDS = 10
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
        engine = _create(url, options)
        if engine.dialect.name == "sqlite":
            _make_sqlite_transactional(engine)
        return engine

    def dispose_all(self) -> None:
        """Close every pooled connection and forget the engines."""
        with self._lock:
            engines = list(self._engines.values())
            self._engines.clear()
        for engine in engines:
            engine.dispose()


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


def let_sessions_say(engine: Engine, sql: str) -> Engine:
    """Have every new session of a PostgreSQL engine begin with some settings. Not for engines that others use too."""
    listener = _saying(sql)
    if engine.dialect.name == "postgresql" and not event.contains(engine, "connect", listener):
        event.listen(engine, "connect", listener)
    return engine


def end_what_freezes(engine: Engine) -> Engine:
    """Have the server end transactions of new sessions in which nothing is said for a while: their process froze.

    Its row locks would keep everybody from what it held. Not for engines that handlers use: those may take their time.
    MySQL cannot, and SQLite has no server.
    """
    listener = _FREEZES.get(engine.dialect.name)
    if listener is not None and not event.contains(engine, "connect", listener):
        event.listen(engine, "connect", listener)
    return engine


def _limit_on_mariadb(dbapi_connection: Any, _record: object) -> None:
    with suppress(dbapi_connection.Error), dbapi_connection.cursor() as cursor:
        cursor.execute(f"SET SESSION idle_transaction_timeout = {_FROZEN_SECONDS}")


@functools.cache
def _saying(sql: str) -> Callable[[Any, object], None]:
    def say(dbapi_connection: Any, _record: object) -> None:
        before = dbapi_connection.autocommit
        dbapi_connection.autocommit = True
        dbapi_connection.execute(sql)
        dbapi_connection.autocommit = before

    return say


_FREEZES: dict[str, Callable[[Any, object], None]] = {
    "postgresql": _saying(f"SET idle_in_transaction_session_timeout = '{_FROZEN_SECONDS}s'"),
    "mysql": _limit_on_mariadb,
    "mariadb": _limit_on_mariadb,
}


def autocommit(engine: Engine) -> Connection:
    """Return a connection on which every statement is its own transaction: one round trip each."""
    if engine.dialect.name == "sqlite":
        return engine.connect().execution_options(holdfast_begin="none")
    if engine.get_execution_options().get(_ALWAYS_AUTOCOMMIT):
        return engine.connect()
    try:
        return _autocommitting(engine)
    except engine.dialect.loaded_dbapi.Error:  # a pooled connection was dead; nothing was sent on it
        return _autocommitting(engine)


def always_autocommit(config: DbConfig) -> DbConfig:
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
        return connection.execution_options(isolation_level="AUTOCOMMIT")
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
            "connect_args": config.connect_args,
            "engine_kwargs": config.engine_kwargs,
        },
        sort_keys=True,
        default=with_type,
    )
