"""Sound bounds on SQLite: one writer at a time, and a clock whose ticks can be a whole second."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime

from sqlalchemy.engine import Connection
from sqlalchemy.exc import OperationalError

from ....core.barrier import Reading
from ....core.errors import SourceConfigurationError
from ..inspection import CursorFacts
from .ticks import moments_ahead

# The present moment in UTC. Expected rows: 1.
_UTC_NOW = "SELECT strftime('%Y-%m-%d %H:%M:%f', 'now')"


# Fails on a read-only database, and otherwise asks for a clean-up that is rolled back. Expected rows: 0.
_REQUIRE_WRITABLE = "PRAGMA incremental_vacuum(1)"


class _WriterAtWorkError(Exception):
    """Another connection holds the write lock."""


@contextmanager
def _write_lock(connection: Connection) -> Iterator[None]:
    """Hold the write lock for a moment. On a read-only database BEGIN IMMEDIATE succeeds without taking it."""
    try:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    except OperationalError as error:
        if "locked" in str(error.orig):
            raise _WriterAtWorkError from error
        raise
    try:
        connection.exec_driver_sql(_REQUIRE_WRITABLE)
        yield
    except OperationalError as error:
        if "readonly" not in str(error.orig):
            raise
        raise SourceConfigurationError(
            "This SQLite database is opened read-only, so the trigger cannot wait for a writer to finish and could "
            "skip its rows. Open it read-write, or pass lookback=…"
        ) from error
    finally:
        connection.exec_driver_sql("ROLLBACK")


class ServerTimeHorizon:
    """For a time the database fills: reads below the present tick, taken while nobody writes [HORIZON-SQLITE-TIME].

    A writer holds the one write lock from before it reads the clock until it commits. So while we hold that lock,
    everything written so far is visible, and everything later gets a time that is not below the present one. The time
    is worked out with the column's own default, so that it has the column's format and its ticks.
    """

    name = "server_time"

    def __init__(self, facts: CursorFacts) -> None:
        self._expression = _time_expression(facts)
        self._bound: object = None

    def prepare(self, connection: Connection) -> None:
        """Refuse a database that cannot be locked for a moment."""
        with suppress(_WriterAtWorkError), _write_lock(connection):
            return

    def advance(self, connection: Connection) -> Reading:
        """Return the present tick; when a writer is at work, the bound stays where it was."""
        try:
            with _write_lock(connection):
                self._bound = self._present(connection)
        except _WriterAtWorkError:
            return Reading(self._bound, waiting=True, held_back_by=("another connection that is writing",))
        return Reading(self._bound, waiting=True)

    def _present(self, connection: Connection) -> object:
        if "'localtime'" not in self._expression:
            return connection.exec_driver_sql(f"SELECT {self._expression}").scalar()
        now = datetime.fromisoformat(str(connection.exec_driver_sql(_UTC_NOW).scalar()))
        return _earliest_local(connection, self._expression, now)


def _earliest_local(connection: Connection, expression: str, now: datetime) -> object:
    """Return the earliest value of an expression in local time, now and while summer time may end soon."""
    values = (
        expression.replace("'now'", f"'{moment.isoformat(sep=' ', timespec='milliseconds')}'")
        for moment in moments_ahead(now)
    )
    rows = " UNION ALL ".join(f"SELECT {value} AS moment" for value in values)
    return connection.exec_driver_sql(f"SELECT min(moment) FROM ({rows})").scalar()


def _time_expression(facts: CursorFacts) -> str:
    if facts.has_server_time_default:
        return f"({facts.default})"
    return "CAST(strftime('%s', 'now') AS INTEGER)" if facts.is_integer else "CURRENT_TIMESTAMP"
