"""Versioned changes of Holdfast's own tables, applied in order, once, by whichever process comes first.

Each migration must leave the tables usable by workers of the version before it, so that a fleet can be upgraded one
process at a time, and must be safe to run again: not every database can undo half of one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import Column, DateTime, Integer, MetaData, String, Table, func, insert, inspect, select, text
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError, OperationalError

from .clock import SystemClock
from .config import safe_url
from .driver_errors import connection_error, is_connection_failure, reason
from .engine import writing
from .errors import DbError, WriteError

_metadata = MetaData()
migrations_table = Table(
    "holdfast_migrations",
    _metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("name", String(100), nullable=False),
    Column("applied_at", DateTime, nullable=False, server_default=func.current_timestamp()),
)
_LOCK_NAME = "holdfast_migrations"
_LOCK_NUMBER = 4_857_163_492
_LOCK_SECONDS = 60
_TRIES = 20
_PAUSE_SECONDS = 0.05
_CONTENTION = ("deadlock", "lock timeout", "lock wait timeout", "database is locked")


@dataclass(frozen=True, slots=True)
class Migration:
    """One step: a number that is never reused, a name for people, and what it does."""

    number: int
    name: str
    apply: Callable[[Connection], None]


def migrate(engine: Engine, migrations: Sequence[Migration]) -> list[str]:
    """Apply what is missing, in order, while other processes wait; return the names of what was applied.

    If the process dies half-way, the next call goes on where this one stopped. Workers that hold locks a change needs
    are waited for; where the database breaks off one of both, the change is tried again.

    Raises:
        DbConnectionError: the database does not answer.
        WriteError: the role may not create tables, or another statement failed.
    """
    clock = SystemClock()
    for attempt in range(1, _TRIES + 1):
        try:
            return _apply_missing(engine, migrations)
        except DBAPIError as error:
            if attempt == _TRIES or not _is_contention(error):
                raise _as_ours(engine, error) from error
            clock.wait(threading.Event(), _PAUSE_SECONDS * attempt)
    raise AssertionError("the last try returns or raises")


def _apply_missing(engine: Engine, migrations: Sequence[Migration]) -> list[str]:
    with writing(engine) as connection, connection.begin(), _locked(connection):
        _metadata.create_all(connection)
        done = set(connection.execute(select(migrations_table.c.number)).scalars())
        missing = [step for step in _in_order(migrations) if step.number not in done]
        for step in missing:
            step.apply(connection)
            connection.execute(insert(migrations_table), {"number": step.number, "name": step.name})
        return [f"{step.number:04d} {step.name}" for step in missing]


def _is_contention(error: DBAPIError) -> bool:
    """Return whether workers were in the way: they lock tables in another order than a change of them does."""
    told = str(error.orig).lower()
    return any(hint in told for hint in _CONTENTION)


@dataclass(frozen=True, slots=True)
class Difference:
    """How far a database's tables are from what the code knows."""

    missing: list[str]
    newer: list[str]


def difference(engine: Engine, migrations: Sequence[Migration], known: Sequence[Migration]) -> Difference:
    """Return which of ``migrations`` were not applied yet, and which were that are not ``known`` to this version."""
    done = _applied(engine)
    known_numbers = {step.number for step in known}
    return Difference(
        [f"{step.number:04d} {step.name}" for step in _in_order(migrations) if step.number not in done],
        [f"{number:04d} {name}" for number, name in sorted(done.items()) if number not in known_numbers],
    )


def _in_order(migrations: Sequence[Migration]) -> list[Migration]:
    return sorted(migrations, key=lambda step: step.number)


def _applied(engine: Engine) -> dict[int, str]:
    try:
        with engine.connect() as connection:
            if not inspect(connection).has_table(migrations_table.name):
                return {}
            rows = connection.execute(select(migrations_table.c.number, migrations_table.c.name))
            return {row[0]: row[1] for row in rows}
    except DBAPIError as error:
        raise _as_ours(engine, error) from error


def _as_ours(engine: Engine, error: DBAPIError) -> DbError:
    if is_connection_failure(error) or isinstance(error, OperationalError):
        return connection_error(engine.url, error)
    return WriteError(
        f"Holdfast's tables could not be created in {safe_url(engine.url)}: {reason(error)}. Check the role's grants."
    )


@contextmanager
def _locked(connection: Connection) -> Iterator[None]:
    """Let one process migrate at a time. SQLite needs nothing: BEGIN IMMEDIATE has the write lock already."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": _LOCK_NUMBER})
    is_mysql = connection.dialect.name in ("mysql", "mariadb")
    if is_mysql:
        connection.execute(text("SELECT GET_LOCK(:name, :seconds)"), {"name": _LOCK_NAME, "seconds": _LOCK_SECONDS})
    try:
        yield
    finally:
        if is_mysql:
            connection.execute(text("SELECT RELEASE_LOCK(:name)"), {"name": _LOCK_NAME})
