"""Cursor values as moments: what a column without a time zone means is looked up, or not known at all.

The lag and ``waiting`` need the time of single rows. A column that knows no zone holds the local time of whoever wrote
it: where the database writes it, that is the zone of its default or the server's. How far that is ahead of UTC is asked
once a minute, so that of a row from before summer time began or ended the time may be an hour off.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

from sqlalchemy import text
from sqlalchemy.dialects.mysql import TIMESTAMP as MYSQL_TIMESTAMP
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.types import DateTime

from .inspection import CursorFacts

_DATE_LENGTH = len("2026-01-31")
_FAR = timedelta(days=2)  # a bound in local time may go back by a day when sessions of another zone are met

# How far a zone's local time is ahead of UTC (the session's zone, where none is given). Expected rows: 1.
_POSTGRES_OFFSET = text(
    "SELECT timezone(coalesce(CAST(:zone AS text), current_setting('TimeZone')), now()) - timezone('UTC', now())"
)

# The same of the server's own zone: NULL where it has a name that the server cannot look up. Expected rows: 1.
_MYSQL_OFFSET = text(
    "SELECT TIMESTAMPDIFF(SECOND, moment, CONVERT_TZ(moment, '+00:00', @@global.time_zone)) "
    "FROM (SELECT UTC_TIMESTAMP() AS moment) AS present"
)

# What a default would write now, beside the present moment in UTC. Expected rows: 1.
_SQLITE_PRESENT = "SELECT ({default}), strftime('%Y-%m-%d %H:%M:%f', 'now')"


def with_offset(connection: Connection, facts: CursorFacts, horizon: str) -> CursorFacts:
    """Return the facts with how far the column's local time is ahead of UTC now, where the database writes it."""
    if not facts.has_server_time_default and horizon != "server_time":
        return facts  # who writes it knows in which zone
    return replace(facts, local_offset=_offset(connection, facts))


def moment(facts: CursorFacts | None, value: object) -> datetime | None:
    """Return the time of a row with this cursor value, in UTC, where the column surely tells it."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value
    if facts is None or not facts.is_time:
        return None
    if isinstance(value, datetime):
        return _in_utc(value, timedelta() if isinstance(facts.type, MYSQL_TIMESTAMP) else facts.local_offset)
    if isinstance(value, str) and len(value) > _DATE_LENGTH:
        try:
            return _in_utc(datetime.fromisoformat(value), facts.local_offset)
        except ValueError:
            return None
    return None  # a day is no moment


def is_far_ahead(facts: CursorFacts | None, value: object, bound: object) -> bool:
    """Return whether a cursor value lies so far behind a bound in time that it was never below one by a sound clock."""
    if type(value) is date and type(bound) is date:
        return value - bound > _FAR
    at, limit = moment(facts, value), moment(facts, bound)
    return at is not None and limit is not None and at - limit > _FAR


def _in_utc(local: datetime, offset: timedelta | None) -> datetime | None:
    if local.tzinfo is not None:
        return local
    return None if offset is None else (local - offset).replace(tzinfo=UTC)


def _offset(connection: Connection, facts: CursorFacts) -> timedelta | None:
    zone = None if facts.clock is None else facts.clock.zone
    match connection.dialect.name:
        case "sqlite":
            return _sqlite_offset(connection, facts.default)
        case "postgresql" if isinstance(facts.type, DateTime) and not facts.type.timezone:
            offset: timedelta = connection.execute(_POSTGRES_OFFSET, {"zone": zone}).scalar_one()
            return offset
        case "mysql" | "mariadb" if zone == "utc":
            return timedelta()
        case "mysql" | "mariadb" if isinstance(facts.type, DateTime) and not isinstance(facts.type, MYSQL_TIMESTAMP):
            seconds = connection.execute(_MYSQL_OFFSET).scalar()
            return None if seconds is None else timedelta(seconds=int(seconds))
    return None


def _sqlite_offset(connection: Connection, default: str | None) -> timedelta | None:
    """Return how far a default's time is ahead of UTC, in whole minutes: it may have no fractions of a second."""
    if default is None:
        return timedelta()  # CURRENT_TIMESTAMP, as the horizon has it
    try:
        value, now = connection.exec_driver_sql(_SQLITE_PRESENT.format(default=default)).one()
        ahead = datetime.fromisoformat(value) - datetime.fromisoformat(now)
    except (DBAPIError, TypeError, ValueError):  # a number, or a time with a zone of its own
        return None
    return timedelta(minutes=round(ahead.total_seconds() / 60))
