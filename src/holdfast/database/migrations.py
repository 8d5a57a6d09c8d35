"""Versioned changes of Holdfast's own tables, applied in order, once, by whichever process comes first.

Each migration must leave the tables usable by workers of the version before it, so that a fleet can be upgraded one
process at a time, and must be safe to run again: not every database can undo half of one. So a release works on the
tables of later ones, and starts there, until a migration says which one a release must know for that (``needs``).
"""

from __future__ import annotations

import itertools
import logging
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import Column, DateTime, Integer, MetaData, String, Table, delete, func, insert, inspect, select, text
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError, NoSuchTableError

from ..core.clock import SystemClock
from ..core.config import safe_url
from ..core.errors import ConfigurationError, DbError, WriteError
from .deadlines import limited, set_deadline
from .errors import PASSING, Kind, classified, code_of, connection_error, may_be_tried_again
from .key_collation import KEY_TABLE
from .pools import writing
from .repeating import repeated
from .rights import require_all_rows
from .server_roles import is_galera_node

_metadata = MetaData()
migrations_table = Table(
    "holdfast_migrations",
    _metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("name", String(100), nullable=False),
    Column("applied_at", DateTime, nullable=False, server_default=func.current_timestamp()),
    Column("needs", Integer),
    **KEY_TABLE,
)
_columns = migrations_table.c
_LOCK_NAME = "holdfast_migrations"
_LOCK_NUMBER = 4_857_163_492
_LOCK_SECONDS = 5
_PAUSE_SECONDS = 0.05
_TRIES = 60
_OVERTAKEN = frozenset({1050, 1054, 1060, 1061, 1062, 1091, 1146, 1684})
"""MariaDB's words for a change that another node of Galera has just made: no lock of the server keeps nodes apart."""
_log = logging.getLogger("holdfast.migrations")


@dataclass(frozen=True, slots=True)
class Migration:
    """One step: a number that is never reused, a name for people, and what it does.

    ``needs`` is the number of the migration that a release must know to work on the tables after this one. Left out,
    every release may that worked on them before.
    """

    number: int
    name: str
    apply: Callable[[Connection], None]
    needs: int | None = None

    def __str__(self) -> str:
        return f"{self.number:04d} {self.name}"


@dataclass(frozen=True, slots=True)
class _Applied:
    """A migration that the database's tables have gone through; this release need not know it."""

    number: int
    name: str
    needs: int | None = None

    def __str__(self) -> str:
        return f"{self.number:04d} {self.name}"


@dataclass(frozen=True, slots=True)
class Difference:
    """How a database's tables differ from those that a release would make.

    ``newer`` are migrations that the release does not know, ``too_new`` those of them after which it cannot work.
    """

    missing: list[str]
    newer: list[str]
    too_new: list[str]


def migrate(engine: Engine, migrations: Sequence[Migration]) -> list[str]:
    """Apply what is missing, in order, while other processes wait; return the names of what was applied.

    If the process dies half-way, the next call goes on where this one stopped. Workers that hold locks a change needs
    are waited for; where the database breaks off one of both, the change is tried again: workers lock tables in another
    order than a change of them does. So is one that another node of a Galera cluster was faster with: its own processes
    wait for each other, nodes do not, and each migration is safe to run again.

    Raises:
        DbConnectionError: the database does not answer.
        WriteError: the role may not create tables, or another statement failed.
    """
    return _changed(engine, lambda connection: _apply_missing(connection, migrations))


def step_back(engine: Engine, to: int) -> list[str]:
    """Forget that the migrations after number ``to`` were applied; return which.

    Releases that refuse tables with a migration they do not know then start again. The tables stay as they are, for
    each migration leaves them usable by the releases before it. ``migrate`` applies what was forgotten once more.

    Raises:
        ConfigurationError: it was not applied, or one after it has left nothing that releases before it could use.
        DbConnectionError: the database does not answer.
    """
    return _changed(engine, lambda connection: _forget_after(connection, to))


def difference(engine: Engine, migrations: Sequence[Migration], known: Sequence[Migration]) -> Difference:
    """Return which of ``migrations`` were not applied yet, and which were that are not ``known`` to this release."""
    done = _applied(engine)
    numbers, known_numbers = {step.number for step in done}, {step.number for step in known}
    newer = [step for step in done if step.number not in known_numbers]
    return Difference(
        [str(step) for step in _in_order(migrations) if step.number not in numbers],
        [str(step) for step in newer],
        [str(step) for step in newer if step.needs is not None and step.needs not in known_numbers],
    )


def _in_order(migrations: Sequence[Migration]) -> list[Migration]:
    return sorted(migrations, key=lambda step: step.number)


def _apply_missing(connection: Connection, migrations: Sequence[Migration]) -> list[str]:
    _metadata.create_all(connection)
    if "needs" not in _found_columns(connection):  # releases before did not say it
        connection.exec_driver_sql(f"ALTER TABLE {migrations_table.name} ADD COLUMN needs INTEGER")
    done = {step.number for step in _rows(connection)}
    missing = [step for step in _in_order(migrations) if step.number not in done]
    for step in missing:
        step.apply(connection)
        row = {"number": step.number, "name": step.name, "needs": step.needs}
        connection.execute(insert(migrations_table), row)
    return [str(step) for step in missing]


def _forget_after(connection: Connection, to: int) -> list[str]:
    done = _rows(connection)
    if to not in {step.number for step in done}:
        known = ", ".join(map(str, done)) or "none"
        raise ConfigurationError(f"There is no migration {to} to go back to, so nothing was changed. Applied: {known}.")
    after = [step for step in done if step.number > to]
    for step in after:
        if step.needs is not None and step.needs > to:
            raise ConfigurationError(
                f"The tables cannot go back to migration {to}: since '{step}' only releases that know migration "
                f"{step.needs} can work on them. Nothing was changed. Restore a backup from before it."
            )
    connection.execute(delete(migrations_table).where(_columns.number > to))
    return [str(step) for step in after]


def _applied(engine: Engine) -> list[_Applied]:
    try:
        with limited(engine.connect()) as connection:
            return _rows(connection)
    except DBAPIError as error:
        raise _as_ours(engine, error, "read") from error


def _rows(connection: Connection) -> list[_Applied]:
    """Return what was applied, in order; nothing where there is no table yet."""
    there = _found_columns(connection)
    if not there:
        return []
    require_all_rows(connection, {migrations_table.name: ("SELECT",)})
    wanted = [column for column in (_columns.number, _columns.name, _columns.needs) if column.name in there]
    return [_Applied(*row) for row in connection.execute(select(*wanted).order_by(_columns.number))]


def _found_columns(connection: Connection) -> set[str]:
    try:
        return {column["name"] for column in inspect(connection).get_columns(migrations_table.name)}
    except NoSuchTableError:
        return set()


def _changed(engine: Engine, change: Callable[[Connection], list[str]]) -> list[str]:
    """Do ``change`` in a transaction of which there is one at a time, again where workers were in the way."""

    def once() -> list[str]:
        with writing(engine) as connection:
            set_deadline(connection, None)
            with _locked_session(connection), connection.begin():
                _lock_transaction(connection)
                return change(connection)

    def is_passing(error: Exception) -> bool:
        return may_be_tried_again(error) or (code_of(getattr(error, "orig", None)) in _OVERTAKEN and _has_nodes(engine))

    try:
        return repeated(once, tries=_TRIES, patience_seconds=math.inf, is_passing=is_passing)
    except DBAPIError as error:
        raise _as_ours(engine, error) from error


def _has_nodes(engine: Engine) -> bool:
    with engine.connect() as connection:
        return is_galera_node(connection)


def _as_ours(engine: Engine, error: DBAPIError, doing: str = "created") -> DbError:
    failure = classified(engine.url, error)
    if engine.dialect.name == "sqlite":
        return connection_error(engine.url, error)
    if failure.kind in (Kind.READ_ONLY, Kind.DISK_FULL):
        return WriteError(failure.sentence)
    if failure.kind in PASSING:
        return connection_error(engine.url, error)
    return WriteError(
        f"Holdfast's tables could not be {doing} in {failure.where}: {failure.why}. Check the role's grants."
    )


@contextmanager
def _locked_session(connection: Connection) -> Iterator[None]:
    """On MariaDB and MySQL, have the lock until the transaction inside has ended, whatever that was.

    There each change of a table commits, and what is written after the last one is seen by others with the COMMIT.
    """
    if connection.dialect.name not in ("mysql", "mariadb"):
        yield
        return
    _take_named_lock(connection)
    try:
        yield
    finally:
        _give_named_lock_back(connection)


def _take_named_lock(connection: Connection) -> None:
    """Wait until whoever migrates now is done, however long that takes."""
    ask = text("SELECT GET_LOCK(:name, :seconds)")
    with connection.begin():
        has_lock = connection.execute(ask, {"name": _LOCK_NAME, "seconds": 0}).scalar_one() == 1
        if not has_lock:
            _tell_waiting(connection)
        while not has_lock:
            has_lock = connection.execute(ask, {"name": _LOCK_NAME, "seconds": _LOCK_SECONDS}).scalar_one() == 1


def _give_named_lock_back(connection: Connection) -> None:
    """Let others migrate; a session that cannot say so any more is ended, and its lock with it."""
    try:
        with connection.begin():
            connection.execute(text("SELECT RELEASE_LOCK(:name)"), {"name": _LOCK_NAME})
    except Exception:
        connection.invalidate()


def _lock_transaction(connection: Connection) -> None:
    """Wait until whoever migrates now is done. SQLite needs nothing: BEGIN IMMEDIATE has the write lock already."""
    if connection.dialect.name != "postgresql":
        return
    ask, clock, pause = text("SELECT pg_try_advisory_xact_lock(:number)"), SystemClock(), threading.Event()
    for asked_before in itertools.count():
        if connection.execute(ask, {"number": _LOCK_NUMBER}).scalar_one():
            return
        if not asked_before:
            _tell_waiting(connection)
        clock.wait(pause, _PAUSE_SECONDS)


def _tell_waiting(connection: Connection) -> None:
    where = safe_url(connection.engine.url)
    _log.info("Another process changes the tables of Holdfast in %s; this one waits until it is done", where)
