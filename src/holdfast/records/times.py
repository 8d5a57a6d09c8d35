"""Moments in the tables of records: UTC and aware on our side, whatever the database keeps them as.

PostgreSQL keeps instants; MariaDB and MySQL keep ``DATETIME(6)`` and SQLite keeps text, both in UTC and without a zone.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import DateTime, func, literal_column, select
from sqlalchemy.dialects.mysql import DATETIME
from sqlalchemy.engine import Connection, Dialect
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.types import TypeDecorator, TypeEngine

from ..core.errors import ConfigurationError
from ..database.sqlite_types import SqliteMoment
from ..database.unreadable import Unreadable

_DATABASE_TIME = {
    "sqlite": "strftime('%Y-%m-%d %H:%M:%f000', 'now')",
    "postgresql": "clock_timestamp()",
    "mysql": "UTC_TIMESTAMP(6)",
    "mariadb": "UTC_TIMESTAMP(6)",
}

_TEXT = SqliteMoment(DateTime())
_EARLIEST = datetime(1000, 1, 1, tzinfo=UTC)  # before it, not every database can compare


class UtcMoment(TypeDecorator[Any]):
    """A column of moments that takes and gives aware datetimes, in UTC, to the microsecond."""

    impl = DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Return what the database keeps."""
        if dialect.name in ("mysql", "mariadb"):
            return dialect.type_descriptor(DATETIME(fsp=6))
        return dialect.type_descriptor(DateTime(timezone=True))

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Return the moment as the driver wants it."""
        if value is None:
            return None
        in_utc = utc_moment(value)
        return in_utc if dialect.name == "postgresql" else in_utc.replace(tzinfo=None)

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any]:
        """Return what makes a value of a driver's an aware moment, or ``Unreadable``."""
        return _aware


def _aware(value: Any) -> datetime | Unreadable | None:
    """Return a stored moment, which SQLite has as text. MariaDB's driver hands out its zero date as text, too."""
    found = value if value is None or isinstance(value, datetime) else _TEXT.read(value)
    if not isinstance(found, datetime):
        return found  # None or Unreadable
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


def utc_moment(moment: datetime) -> datetime:
    """Return a moment in UTC.

    Raises:
        ConfigurationError: it has no time zone.
    """
    if moment.tzinfo is None:
        raise ConfigurationError(f"The time {moment.isoformat()} has no time zone. Pass an aware datetime.")
    return moment.astimezone(UTC)


def database_time(dialect: Dialect) -> ColumnElement[datetime]:
    """Return the expression for the database's own time, in the form the tables keep."""
    words = _DATABASE_TIME.get(dialect.name)
    return func.current_timestamp(type_=UtcMoment()) if words is None else literal_column(words, UtcMoment())


def database_now(connection: Connection) -> datetime:
    """Return the database's own time."""
    return connection.execute(select(database_time(connection.dialect))).scalar_one()


def days_before(moment: datetime, days: float) -> datetime:
    """Return the moment that many days earlier, or the earliest there is."""
    try:
        return max(_EARLIEST, moment - timedelta(days=days))
    except OverflowError:
        return _EARLIEST
