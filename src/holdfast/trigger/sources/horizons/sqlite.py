"""Sound bounds on SQLite: one writer at a time, and a clock whose ticks can be a whole second."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from sqlalchemy.engine import Connection
from sqlalchemy.exc import OperationalError

from ....core.errors import SourceConfigurationError
from ....database.barrier import Reading
from ....database.errors import Kind, kind_of
from ..inspection import CursorFacts
from .local_times import UTC_ZONE, LocalTimes, ZoneTime, local_times
from .ticks import moments_ahead

# The present moment in UTC. Expected rows: 1.
_UTC_NOW = "SELECT strftime('%Y-%m-%d %H:%M:%f', 'now')"

# The present moment in the local time of this process: those who write may have other zones. Expected rows: 1.
_LOCAL_NOW = "strftime('%Y-%m-%d %H:%M:%f', 'now', 'localtime')"
_THIS_PROCESS = "this process's zone"
_LOCALTIME = re.compile(r"\s*,\s*'localtime'", re.IGNORECASE)
_NOW = re.compile(r"'now'", re.IGNORECASE)


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
        if kind_of(error) is Kind.CONTENTION:
            raise _WriterAtWorkError from error
        raise
    try:
        connection.exec_driver_sql(_REQUIRE_WRITABLE)
        yield
    except OperationalError as error:
        if kind_of(error) is not Kind.READ_ONLY:
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

    def __init__(self, facts: CursorFacts, declared_zone: str | None = None) -> None:
        self.writers: LocalTimes | None = None
        self._expression = _time_expression(facts)
        self._is_local = facts.holds_local_time("sqlite")
        self._zone = None if declared_zone is None else _zone(declared_zone)
        self._bound: object = None

    def prepare(self, connection: Connection) -> None:
        """Refuse a database that cannot be locked for a moment."""
        with suppress(_WriterAtWorkError), _write_lock(connection):
            self._present(connection)

    def advance(self, connection: Connection) -> Reading:
        """Return the present tick; when a writer is at work, the bound stays where it was."""
        try:
            with _write_lock(connection):
                self._bound = self._present(connection)
        except _WriterAtWorkError:
            return Reading(self._bound, waiting=True, held_back_by=("another connection that is writing",))
        return Reading(self._bound, waiting=True)

    def _present(self, connection: Connection) -> object:
        if not self._is_local:
            return connection.exec_driver_sql(f"SELECT {self._expression}").scalar()
        now = datetime.fromisoformat(str(connection.exec_driver_sql(_UTC_NOW).scalar()))
        in_utc = _LOCALTIME.sub("", self._expression)
        if self._zone is not None:
            ahead = [_in_zone(moment, self._zone) for moment in moments_ahead(now)]
            self.writers = local_times([ZoneTime(str(self._zone), ahead[0], min(ahead))], is_declared=True)
            return _earliest(connection, [_at(in_utc, moment) for moment in ahead])
        local = datetime.fromisoformat(str(connection.exec_driver_sql(f"SELECT {_at(_LOCAL_NOW, now)}").scalar()))
        zones = [ZoneTime(UTC_ZONE, now, now), ZoneTime(_THIS_PROCESS, local, local)]
        self.writers = local_times(zones, is_declared=False)
        earliest: Any = _earliest_local(connection, self._expression, now)
        return min(earliest, _earliest(connection, [_at(in_utc, now)]))


def _zone(name: str) -> ZoneInfo:
    """Return a zone by its name.

    Raises:
        SourceConfigurationError: there is none of this name.
    """
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise SourceConfigurationError(
            f"There is no time zone '{name}' on this machine. Write a name such as 'Europe/Berlin'."
        ) from error


def _in_zone(moment: datetime, zone: ZoneInfo) -> datetime:
    return moment.replace(tzinfo=UTC).astimezone(zone).replace(tzinfo=None)


def _at(expression: str, moment: datetime) -> str:
    """Return the expression for another moment than the present one."""
    return _NOW.sub(f"'{moment.isoformat(sep=' ', timespec='milliseconds')}'", expression)


def _earliest_local(connection: Connection, expression: str, now: datetime) -> object:
    """Return the earliest value of an expression in local time, now and while summer time may end soon."""
    return _earliest(connection, [_at(expression, moment) for moment in moments_ahead(now)])


def _earliest(connection: Connection, values: Sequence[str]) -> object:
    rows = " UNION ALL ".join(f"SELECT {value} AS moment" for value in values)
    return connection.exec_driver_sql(f"SELECT min(moment) FROM ({rows})").scalar()


def _time_expression(facts: CursorFacts) -> str:
    if facts.has_server_time_default:
        return f"({facts.default})"
    return "CAST(strftime('%s', 'now') AS INTEGER)" if facts.is_integer else "CURRENT_TIMESTAMP"
