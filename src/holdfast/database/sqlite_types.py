"""SQLite's columns, which hold whatever is put into them: read exactly, or reported as unreadable.

SQLite has five kinds of values and a liking of each column for some of them. Times are text, decimals are doubles, and
a name of a type that it does not know makes a column of numbers, in which the text ``007`` becomes 7.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, ClassVar
from uuid import UUID

from sqlalchemy import Dialect
from sqlalchemy.types import UserDefinedType

from .kept_types import ClockTime, Day, DoubleNumber, JsonValue, Kept, PlainText, UtcMoment, is_double
from .unreadable import Unreadable

_KINDS = {int: "a whole number", float: "a number", str: "text", bytes: "bytes"}
_MOST_MICROS = 6
_LARGEST = 2**63
_NUMBER = re.compile(r"[ \t\n\v\f\r]*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[ \t\n\v\f\r]*")
_WHOLE = re.compile(r"-?(0|[1-9][0-9]*)")
_FRACTION = re.compile(r"[.,]([0-9]+)")
_ZONED = re.compile(r"TZ\b|WITH (LOCAL )?TIME ZONE|OFFSET", re.IGNORECASE)
_TIMES = re.compile(r"TIMESTAMP|DATETIME", re.IGNORECASE)
_UUIDS = re.compile(r"(UUID|GUID|UNIQUEIDENTIFIER)\b", re.IGNORECASE)


class _ReadExactly(Kept):
    """A column whose values are converted here, and not by SQLAlchemy."""

    cache_ok = True
    can_be_unreadable = True

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any]:
        """Return what converts a stored value."""
        return self.read

    def read(self, value: Any) -> Any:
        """Return a stored value in Python's form, or ``Unreadable``."""
        return value


def _is_foreign(value: object, kind: str) -> Unreadable:
    """Return the mark for a stored value of another kind than the column's."""
    if isinstance(value, Unreadable):
        return value
    return Unreadable(f"holds {_KINDS.get(type(value), 'a value')} that is no {kind}", value)


class _ReadFromText(_ReadExactly):
    cache_ok = True
    kind: ClassVar[str]

    def parse(self, text: str) -> Any:
        """Return what a text stands for; ``ValueError`` when it stands for nothing."""
        return text

    def read(self, value: Any) -> Any:
        """Return what a text stands for."""
        if value is None:
            return None
        return _is_foreign(value, self.kind) if type(value) is not str else _parsed(self.parse, value, self.kind)


def _parsed(parse: Callable[[str], Any], text: str, kind: str) -> Any:
    try:
        found = parse(text)
    except ValueError:
        return _is_foreign(text, kind)
    digits = _FRACTION.search(text) if len(text) > _MOST_MICROS else None
    if digits is not None and digits[1][_MOST_MICROS:].strip("0"):
        return Unreadable("holds a time with more than six digits of a second, which Python would cut", text)
    return found


class SqliteMoment(_ReadFromText, UtcMoment):
    """A time, kept as text in UTC."""

    cache_ok = True
    kind = "time as ISO 8601 writes it, such as 2026-01-31 12:00:00"

    def parse(self, text: str) -> Any:
        """Return the time."""
        return datetime.fromisoformat(text)


class SqliteDay(_ReadFromText, Day):
    """A date, kept as text."""

    cache_ok = True
    kind = "date as ISO 8601 writes it, such as 2026-01-31"

    def parse(self, text: str) -> Any:
        """Return the date."""
        return date.fromisoformat(text)


class SqliteClockTime(_ReadFromText, ClockTime):
    """A time of day, kept as text."""

    cache_ok = True
    kind = "time of day as ISO 8601 writes it, such as 12:00:00"

    def parse(self, text: str) -> Any:
        """Return the time of day."""
        return time.fromisoformat(text)


class SqliteFlag(_ReadExactly):
    """True or false, kept as 1 and 0."""

    cache_ok = True

    def read(self, value: Any) -> Any:
        """Return what a number stands for."""
        if value is None or (isinstance(value, (int, float)) and value in (0, 1)):
            return None if value is None else bool(value)
        return _is_foreign(value, "flag, for which SQLite has 1 and 0")


class SqliteAnything(Kept):
    """A column that takes whatever it is given: a whole number, or of no type. "Not a number" would be NULL."""

    cache_ok = True

    def whole(self, value: Any) -> Any:
        """Return the value as SQLite keeps it; a time is left to columns of times, or to whoever writes its text."""
        if isinstance(value, (date, time)):
            raise TypeError(f"SQLite has no {type(value).__name__}; pass value.isoformat()")
        if isinstance(value, Decimal):
            return _stored_number(value)
        if value is not None and not isinstance(value, (str, int, float, bytes, bytearray, memoryview)):
            raise TypeError(f"SQLite has no {type(value).__name__}; pass text, a number or bytes")
        return value if isinstance(value, str) else _number(value)


class SqliteWhole(SqliteAnything):
    """A column of whole numbers: text that looks like a number becomes one in it."""

    cache_ok = True

    def whole(self, value: Any) -> Any:
        """Return the value, of texts no other numbers than those that are written as SQLite writes them."""
        if isinstance(value, str) and _NUMBER.fullmatch(value) and not _WHOLE.fullmatch(value):
            raise ValueError("SQLite would store this text as another number's; pass the number, or declare it TEXT")
        return super().whole(value)


class SqliteText(PlainText):
    """Text. What the driver does not know is written here, as the drivers of other databases do."""

    cache_ok = True

    def whole(self, value: Any) -> Any:
        """Return the text of a value; bytes stay bytes."""
        if isinstance(value, timedelta):
            raise TypeError("a timedelta has no one text; write the one that is meant")
        kept = super().whole(value)
        return kept if isinstance(kept, (str, int, bytes, bytearray, memoryview)) else str(kept)


class SqliteReal(DoubleNumber):
    """A number of double precision. "Not a number" is refused."""

    cache_ok = True

    def whole(self, value: Any) -> Any:
        """Return the value, which is a number."""
        return super().whole(_number(value))


class SqliteNumber(_ReadExactly):
    """A decimal number, kept as a whole number or as a double: one with more digits than that keeps is refused."""

    cache_ok = True

    def bind_processor(self, dialect: Dialect) -> Callable[[Any], Any]:
        """Return what makes a value storable; SQLAlchemy would turn each into a double."""
        return lambda value: self.process_bind_param(value, dialect)

    def whole(self, value: Any) -> Any:
        """Return the number as SQLite keeps it without a change."""
        return _number(value) if isinstance(value, float) else _stored_number(_decimal(value))

    def read(self, value: Any) -> Any:
        """Return the number that is stored, with the decimal places of the column, or more if it has more."""
        if value is None:
            return None
        if not isinstance(value, (int, float)):
            return _is_foreign(value, "number")
        exact = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
        scale = getattr(self.stored, "scale", None)
        if scale is None or not exact.is_finite():
            return exact
        padded = Decimal(f"{exact:.{scale}f}")
        return padded if padded == exact else exact


def _stored_number(exact: Decimal) -> int | float:
    """Return a decimal as SQLite keeps it: whole, or as a double."""
    if exact.is_finite() and exact == exact.to_integral_value() and -_LARGEST <= exact < _LARGEST:
        return int(exact)
    if not is_double(_number(exact)):
        raise ValueError(
            "SQLite keeps decimals as doubles, and this one has more digits than that; a column of type TEXT keeps "
            "them all"
        )
    return float(exact)


def _decimal(value: Any) -> Decimal:
    if not isinstance(value, (int, str, Decimal)):
        raise TypeError(f"a number is wanted, not {type(value).__name__}")
    try:
        return Decimal(_number(value))
    except ArithmeticError:
        raise ValueError("the text is no number") from None


def _number(value: Any) -> Any:
    is_nan = isinstance(value, (float, Decimal)) and math.isnan(value)
    if is_nan or (isinstance(value, str) and value.strip().lower().lstrip("+-") == "nan"):
        raise ValueError("NaN would be stored as NULL; pass None if that is meant")
    return value


class SqliteJson(_ReadExactly, JsonValue):
    """JSON, kept as text; but a number alone would be one in SQLite, and is kept as one."""

    cache_ok = True

    def bind_processor(self, dialect: Dialect) -> Callable[[Any], Any]:
        """Return what encodes a value."""
        return lambda value: self.process_bind_param(value, dialect)

    def whole(self, value: Any) -> Any:
        """Return the value as a text, or a number as it is."""
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return _number(value)
        return json.dumps(super().whole(value))

    def read(self, value: Any) -> Any:
        """Return what is stored."""
        if value is None or isinstance(value, (int, float)):
            return value
        return _parsed_json(value)


def _parsed_json(value: Any) -> Any:
    try:
        return json.loads(value)
    except (TypeError, ValueError):
        return _is_foreign(value, "JSON")


class DeclaredType(UserDefinedType[Any]):
    """A type that SQLite does not know, such as STRING or UUID: it takes values of such columns for numbers."""

    cache_ok = True

    def __init__(self, name: str) -> None:
        self.name = name

    def get_col_spec(self, **_: Any) -> str:
        """Return the type as it was declared."""
        return self.name


class SqliteDeclared(_ReadExactly):
    """A column of a type that SQLite does not know. Values come out as they are stored, UUIDs and times as such."""

    cache_ok = True
    can_be_unreadable = False

    @property
    def _name(self) -> str:
        return str(getattr(self.stored, "name", ""))

    def whole(self, value: Any) -> Any:
        """Return the value, which SQLite stores as it is.

        Raises:
            ValueError: it would turn the text into a number.
        """
        if isinstance(value, UUID) and _UUIDS.match(self._name):
            return str(value)
        if isinstance(value, datetime) and _TIMES.search(self._name):
            return self._moment(value)
        if isinstance(value, str) and _NUMBER.fullmatch(value):
            raise ValueError(
                f"SQLite does not know the type {self._name}, and would store this text as a number; declare the "
                "column TEXT"
            )
        if not isinstance(value, (str, int, float, bytes)):
            raise TypeError(
                f"SQLite does not know the type {self._name}, so pass text, a number or bytes, not "
                f"{type(value).__name__}"
            )
        return value if isinstance(value, str) else _number(value)

    def _moment(self, value: datetime) -> str:
        """Return a moment in UTC, marked as such where the type has zones; without one it stays without."""
        if value.tzinfo is not None:
            value = value.astimezone(UTC)
        kept = value if _ZONED.search(self._name) else value.replace(tzinfo=None)
        return kept.isoformat(sep=" ", timespec="microseconds")

    def read(self, value: Any) -> Any:
        """Return what is stored: a UUID or a time where the column is for them and the text is one."""
        if type(value) is not str:
            return value
        if _UUIDS.match(self._name):
            return _uuid(value)
        if _TIMES.search(self._name):
            found = _parsed(datetime.fromisoformat, value, "time")
            return value if isinstance(found, Unreadable) else found
        return value


def _uuid(text: str) -> object:
    try:
        found = UUID(text)
    except ValueError:
        return text
    return found if str(found) == text else text
