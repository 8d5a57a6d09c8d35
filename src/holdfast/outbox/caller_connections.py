"""The caller's open transaction, whatever kind of connection it is on: SQLAlchemy's, psycopg's or sqlite3's."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from sqlalchemy.engine import Connection, TwoPhaseTransaction

from ..core.clock import new_id
from ..core.errors import ConfigurationError, MessageError
from ..database.drivers import driver_of
from ..database.statements import family

_GROUP = "holdfast_outbox_group"
_SERVER_IS_IN_TRANSACTION = 1
_OUTSIDE = (
    "hf.outbox.append was called outside a transaction, so the message would not commit together with your data. "
)


class Caller(Protocol):
    """Runs statements inside the caller's transaction."""

    dialect: str

    @property
    def may_notify(self) -> bool:
        """Return whether the transaction may use NOTIFY: one that is to be prepared may not."""
        ...

    def run(self, sql: str, values: Mapping[str, object]) -> Sequence[Sequence[Any]]:
        """Run one statement and return its rows."""
        ...

    def run_many(self, sql: str, values: Sequence[Mapping[str, object]]) -> None:
        """Run a statement for several sets of values."""
        ...

    def transaction_group(self) -> str:
        """Return what all appends of this transaction have in common."""
        ...


def caller_of(connection: object) -> Caller:
    """Return what runs statements on a connection of the caller.

    Raises:
        MessageError: no transaction is open on it.
        ConfigurationError: it is no connection that can be used here.
    """
    if type(connection).__module__.startswith("sqlalchemy.ext.asyncio"):
        raise ConfigurationError(
            f"hf.outbox.append cannot await a {type(connection).__name__}. Write await connection.run_sync("
            "hf.outbox.append, type, data), which passes the connection itself on."
        )
    if isinstance(connection, Connection):
        return _SqlAlchemy(_inside(connection))
    if isinstance(connection, sqlite3.Connection):
        return _Sqlite3(connection)
    if _is_session(connection):
        return _SqlAlchemy(_inside(connection.connection()))  # type: ignore[attr-defined]  # a Session, checked just now
    if _is_psycopg(connection):
        return _Psycopg(connection)
    raise ConfigurationError(
        f"hf.outbox.append cannot use an object of type {type(connection).__name__}. Pass a SQLAlchemy Connection or "
        "Session, a psycopg or sqlite3 connection; with SQLAlchemy's asyncio, await connection.run_sync("
        "hf.outbox.append, …)."
    )


class _SqlAlchemy:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.dialect = family(connection.dialect.name)
        if self.dialect == "postgresql" and connection.dialect.paramstyle != "pyformat":
            raise ConfigurationError(
                f"hf.outbox.append cannot use the driver {connection.dialect.driver}. Use psycopg, as in "
                "postgresql+psycopg://…, which has an asyncio form too."
            )

    @property
    def may_notify(self) -> bool:
        return not isinstance(self._connection.get_transaction(), TwoPhaseTransaction)

    def run(self, sql: str, values: Mapping[str, object]) -> Sequence[Sequence[Any]]:
        answer = self._connection.exec_driver_sql(sql, dict(values))
        return answer.fetchall() if answer.returns_rows else []

    def run_many(self, sql: str, values: Sequence[Mapping[str, object]]) -> None:
        self._connection.exec_driver_sql(sql, [dict(row) for row in values])

    def transaction_group(self) -> str:
        """Return the group, remembered beside the transaction it was made for."""
        transaction = self._connection.get_transaction()
        known = self._connection.info.get(_GROUP)
        if known is None or known[0] is not transaction:
            known = self._connection.info[_GROUP] = (transaction, new_id(16))
        group: str = known[1]
        return group


class _Psycopg:
    dialect = "postgresql"

    def __init__(self, connection: Any) -> None:
        if connection.autocommit and connection.info.transaction_status.name == "IDLE":
            raise MessageError(_OUTSIDE + "Use with connection.transaction(): …")
        self._connection = connection

    @property
    def may_notify(self) -> bool:
        return getattr(self._connection, "_tpc", None) is None

    def run(self, sql: str, values: Mapping[str, object]) -> Sequence[Sequence[Any]]:
        import psycopg.rows

        with self._connection.cursor(row_factory=psycopg.rows.tuple_row) as cursor:
            rows: Sequence[Sequence[Any]] = cursor.execute(sql, values).fetchall()
            return rows

    def run_many(self, sql: str, values: Sequence[Mapping[str, object]]) -> None:
        with self._connection.cursor() as cursor:
            cursor.executemany(sql, values)

    def transaction_group(self) -> str:
        return ""


class _Sqlite3:
    dialect = "sqlite"
    may_notify = False

    def __init__(self, connection: sqlite3.Connection) -> None:
        begins_by_itself = connection.isolation_level is not None and getattr(connection, "autocommit", -1) is not True
        if not connection.in_transaction and not begins_by_itself:
            raise MessageError(_OUTSIDE + "Run BEGIN IMMEDIATE first.")
        self._connection = connection

    def run(self, sql: str, values: Mapping[str, object]) -> Sequence[Sequence[Any]]:
        cursor = self._connection.cursor()
        cursor.row_factory = None
        return cursor.execute(sql, dict(values)).fetchall()

    def run_many(self, sql: str, values: Sequence[Mapping[str, object]]) -> None:
        self._connection.cursor().executemany(sql, values)

    def transaction_group(self) -> str:
        return ""


def _inside(connection: Connection) -> Connection:
    if not connection.in_transaction() or _commits_each_statement(connection):
        raise MessageError(_OUTSIDE + "Use with engine.begin() as connection: …, or connection.begin().")
    return connection


def _commits_each_statement(connection: Connection) -> bool:
    """Return whether the connection is in autocommit mode, where SQLAlchemy's own transactions mean nothing."""
    driver = driver_of(connection)
    match connection.dialect.name:
        case "postgresql":
            is_idle = getattr(getattr(driver, "info", None), "transaction_status", None)
            return bool(getattr(driver, "autocommit", False)) and getattr(is_idle, "name", "IDLE") == "IDLE"
        case "mysql" | "mariadb":
            is_inside = getattr(driver, "server_status", 0) & _SERVER_IS_IN_TRANSACTION
            return bool(hasattr(driver, "get_autocommit") and driver.get_autocommit() and not is_inside)
        case "sqlite":
            return getattr(driver, "isolation_level", "") is None and not driver.in_transaction
    return False


def _is_session(connection: object) -> bool:
    return callable(getattr(connection, "connection", None)) and callable(getattr(connection, "get_bind", None))


def _is_psycopg(connection: object) -> bool:
    kind = type(connection)
    return any(base.__module__.split(".")[0] == "psycopg" and base.__name__ == "Connection" for base in kind.__mro__)
