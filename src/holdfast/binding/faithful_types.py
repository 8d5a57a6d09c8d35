"""Column types that keep a value's meaning where SQLite has no place for all of it.

It holds times without a zone, and SQLAlchemy drops the zone of one that has it: 12:00 in Karachi would be stored as
12:00 in London. And it takes "not a number" for NULL.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime, time
from decimal import Decimal
from typing import Any

from sqlalchemy import DateTime, Dialect, Float, Numeric, Time
from sqlalchemy.types import TypeDecorator, TypeEngine


class _Kept(TypeDecorator[Any]):
    """A column's own type, with a look at each value before it is stored."""

    impl: TypeEngine[Any] | type[TypeEngine[Any]] = TypeEngine
    cache_ok = True

    def __init__(self, stored: TypeEngine[Any]) -> None:
        super().__init__()
        self.impl = self.stored = stored


class UtcTime(_Kept):
    """A time without a zone, in UTC: one that has a zone is converted."""

    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        """Return the same moment in UTC."""
        if isinstance(value, datetime) and value.tzinfo is not None:
            return value.astimezone(UTC).replace(tzinfo=None)
        return value


class PlainClockTime(_Kept):
    """A time of day. One with a zone is refused: without a date it cannot be converted."""

    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        """Return the value, which has no zone.

        Raises:
            ValueError: it has one.
        """
        if isinstance(value, time) and value.tzinfo is not None:
            raise ValueError("a time of day with a zone cannot be stored here; leave the zone out")
        return value


class FiniteNumber(_Kept):
    """A number. "Not a number" is refused."""

    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        """Return the value, which is a number.

        Raises:
            ValueError: it is none.
        """
        if isinstance(value, (float, Decimal)) and math.isnan(value):
            raise ValueError("NaN would be stored as NULL; pass None if that is meant")
        return value


_KEPT: tuple[tuple[tuple[type[TypeEngine[Any]], ...], type[_Kept]], ...] = (
    ((DateTime,), UtcTime),
    ((Time,), PlainClockTime),
    ((Numeric, Float), FiniteNumber),
)


def faithful(column_type: TypeEngine[Any], dialect_name: str) -> TypeEngine[Any]:
    """Return the type under which a column's values keep their meaning; mostly the same one."""
    if dialect_name != "sqlite":
        return column_type
    return next((kept(column_type) for kinds, kept in _KEPT if isinstance(column_type, kinds)), column_type)
