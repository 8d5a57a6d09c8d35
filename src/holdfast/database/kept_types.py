"""Column types that lose nothing of a value on its way into a database: it is stored whole, or refused.

What a column declares is the schema's word, and applied by the database: the decimal places of a DECIMAL, the digits of
a second, the single precision of a REAL, the length of a CHAR. Everything else that a driver or a database would drop
in silence is refused here: a zone, a time of day, a fraction, digits that a double does not have.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network
from typing import Any
from uuid import UUID

from sqlalchemy import Dialect
from sqlalchemy.types import TypeDecorator, TypeEngine

from .text_times import day_text, moment_text, time_text, zoned_text

_WRITTEN_AS_TEXT = (
    *(str, bytes, bytearray, int, float, Decimal, date, time, timedelta),
    *(UUID, IPv4Address, IPv6Address, IPv4Interface, IPv6Interface, IPv4Network, IPv6Network),
)
_OCTETS = (bytes, bytearray, memoryview)
_CONTAINERS = (list, tuple, set, frozenset, Mapping)
_NO_NUMBERS = (*_OCTETS, date, time, timedelta, UUID)
_WHOLE_TEXT = re.compile(r"\s*[+-]?[0-9]+\s*")
_FIRST_WHOLE_YEAR = 100
_TEXT_KEYS = "a key in JSON is a text, and another one would become one; write str(key)"


class Kept(TypeDecorator[Any]):
    """A column's own type, with a look at each value before it is stored.

    ``stored`` is the column's own type, ``column`` its name for messages. ``can_be_unreadable`` means that a value may
    come as ``Unreadable``, ``takes_containers`` that lists and dicts may be stored: MariaDB's driver would write a list
    of one value as that value.
    """

    impl: TypeEngine[Any] | type[TypeEngine[Any]] = TypeEngine
    cache_ok = True
    can_be_unreadable = False
    takes_containers = False

    def __init__(self, stored: TypeEngine[Any], column: str = "") -> None:
        super().__init__()
        self.impl = self.stored = stored
        self.column = column

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.stored!r})"

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        """Return what is stored for a value.

        Raises:
            ValueError: it would be stored as another one; the message names the column.
        """
        try:
            if isinstance(value, _CONTAINERS) and not self.takes_containers:
                raise TypeError(f"one value is wanted, not a {type(value).__name__}")
            return None if value is None else self.whole(value)
        except (ArithmeticError, TypeError, ValueError) as error:
            raise ValueError(f"column '{self.column}': {error}") from error

    def whole(self, value: Any) -> Any:
        """Return a value such that nothing of it is lost.

        Raises:
            ArithmeticError, TypeError, ValueError: that cannot be.
        """
        return value


class UtcMoment(Kept):
    """A time without a zone, in UTC: one that has a zone is converted, also one that is given as text."""

    cache_ok = True
    is_iso = False

    def whole(self, value: Any) -> Any:
        """Return the same moment in UTC."""
        if isinstance(value, str):
            return moment_text(value, is_iso=self.is_iso)
        _require(value, date, "a datetime")
        return in_utc(value)


class MariaDbMoment(UtcMoment):
    """A time without a zone on MariaDB and MySQL, which take any digits for one: 10.0.0.1 for a day in 2010."""

    cache_ok = True
    is_iso = True


class ZonedMoment(Kept):
    """A time with a zone. Digits that a database would round are refused."""

    cache_ok = True

    def whole(self, value: Any) -> Any:
        """Return the value, all of which has a place."""
        return zoned_text(value) if isinstance(value, str) else value


def _require(value: object, kinds: type | tuple[type, ...], wanted: str) -> None:
    if not isinstance(value, kinds):
        raise TypeError(f"{wanted} is wanted, not {type(value).__name__}")


def in_utc(value: Any) -> Any:
    """Return a moment with a zone as the same without one, in UTC; anything else as it is."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).replace(tzinfo=None)
    return value


def sent_parameters(dialect_name: str, given: Mapping[str, object]) -> dict[str, object]:
    """Return the parameters of a user's statement: the driver of MariaDB and MySQL would drop the zone of a moment."""
    if dialect_name not in ("mysql", "mariadb"):
        return dict(given)
    return {name: in_utc(value) for name, value in given.items()}


class Day(Kept):
    """A date. A time of day with it is refused."""

    cache_ok = True
    is_iso = False

    def whole(self, value: Any) -> Any:
        """Return the value, which has no time of day."""
        if isinstance(value, str):
            return day_text(value, is_iso=self.is_iso)
        _require(value, date, "a date")
        if isinstance(value, datetime) and value.time() != time():
            raise ValueError("a date has no place for a time of day; write value.date()")
        return value


class MariaDbDay(Day):
    """A date on MariaDB and MySQL."""

    cache_ok = True
    is_iso = True


class ClockTime(Kept):
    """A time of day. One with a zone is refused, since without a date it cannot be converted, and so is a moment."""

    cache_ok = True
    is_iso = False

    def whole(self, value: Any) -> Any:
        """Return the value, which is no more than a time of day."""
        if isinstance(value, str):
            return time_text(value, is_iso=self.is_iso)
        if isinstance(value, time) and value.tzinfo is not None:
            raise ValueError("a time of day with a zone cannot be stored here; leave the zone out")
        if isinstance(value, (datetime, timedelta)):
            raise ValueError(f"a time of day is no {type(value).__name__}; write a datetime.time")
        _require(value, time, "a time of day")
        return value


class ClockTimeOrLength(ClockTime):
    """MariaDB's and MySQL's TIME: a time of day, or a length of up to 838 hours in either direction.

    It is handed out as a ``time`` where it is one, and else as a ``timedelta``.
    """

    cache_ok = True
    is_iso = True

    def whole(self, value: Any) -> Any:
        """Return the value; its driver would write the length before midnight of a negative one."""
        if not isinstance(value, timedelta):
            return super().whole(value)
        seconds, micros = divmod(abs(value) // timedelta(microseconds=1), 1_000_000)
        sign = "-" if value < timedelta() else ""
        return f"{sign}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{micros:06d}"

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        """Return what makes a value of the driver's timedelta."""
        return _clock_time


def _clock_time(value: Any) -> Any:
    if not isinstance(value, timedelta) or not timedelta() <= value < timedelta(days=1):
        return value
    seconds = value.seconds
    return time(seconds // 3600, seconds // 60 % 60, seconds % 60, value.microseconds)


class WholeNumber(Kept):
    """A whole number. One with decimals is refused, also as text: the database would round it."""

    cache_ok = True

    def whole(self, value: Any) -> Any:
        """Return the value, which has no decimals."""
        _require_number(value)
        if isinstance(value, str) and not _WHOLE_TEXT.fullmatch(value):
            raise ValueError("the text is no whole number")
        if isinstance(value, (float, Decimal)) and value != int(value):
            raise ValueError("a number with decimals would be rounded in a column of whole numbers")
        return value


class YearNumber(WholeNumber):
    """MariaDB's and MySQL's YEAR, which takes 1 for 2001."""

    cache_ok = True

    def whole(self, value: Any) -> Any:
        """Return the value, a year with all its digits."""
        if 0 < int(super().whole(value)) < _FIRST_WHOLE_YEAR:
            raise ValueError("a year with one or two digits would be taken for one of another century")
        return value


class Bits(WholeNumber):
    """MariaDB's and MySQL's BIT: a number, or bytes. Of a text, its letters would be stored."""

    cache_ok = True

    def whole(self, value: Any) -> Any:
        """Return the value, which has no sign."""
        if isinstance(value, _OCTETS):
            return value
        if isinstance(value, str) or super().whole(value) < 0:
            raise ValueError("a number from 0 on is wanted, or bytes")
        return int(value)


def _require_number(value: object) -> None:
    """Refuse what drivers and databases make a number of: the bytes that it would consist of, the digits of a date."""
    if isinstance(value, _NO_NUMBERS):
        raise TypeError(f"a number is wanted, not {type(value).__name__}")


class DoubleNumber(Kept):
    """A binary number of double precision. An exact number that has more digits is refused."""

    cache_ok = True

    def whole(self, value: Any) -> Any:
        """Return the value, which a double can hold."""
        _require_number(value)
        return value if not isinstance(value, (int, Decimal)) or is_double(value) else _refuse_digits()


def is_double(value: int | Decimal) -> bool:
    """Return whether an exact number comes back from a double as it is."""
    return value != value or Decimal(repr(float(value))) == value


def _refuse_digits() -> Any:
    raise ValueError("it has more digits than a double keeps; a column of type TEXT keeps them all")


class DecimalNumber(Kept):
    """A decimal number. A float is stored with all its digits: PostgreSQL would keep fifteen."""

    cache_ok = True

    def whole(self, value: Any) -> Any:
        """Return the value as an exact number."""
        _require_number(value)
        return Decimal(repr(float(value))) if isinstance(value, float) else value


class PlainText(Kept):
    """Text. Drivers would write whatever object they get, and databases a float with fewer digits, each in its way."""

    cache_ok = True

    def whole(self, value: Any) -> Any:
        """Return the value, whose text is no matter of taste; with its zone, which a driver would drop."""
        if isinstance(value, (datetime, time)) and value.tzinfo is not None:
            return str(value)
        if isinstance(value, float):
            return repr(float(value))
        if isinstance(value, _WRITTEN_AS_TEXT) and not isinstance(value, bool):
            return value
        raise TypeError(f"{type(value).__name__} is no text; write what is to be stored, such as str(value)")


class TextOnly(PlainText):
    """Text for PostgreSQL, which would write bytes as the digits of its own notation."""

    cache_ok = True

    def whole(self, value: Any) -> Any:
        """Return the value, which is not bytes."""
        if isinstance(value, _OCTETS):
            raise TypeError(f"{type(value).__name__} is no text; write value.decode()")
        return super().whole(value)


class Octets(Kept):
    """Bytes. MariaDB's and MySQL's driver would write as many zeros as a number says."""

    cache_ok = True

    def whole(self, value: Any) -> Any:
        """Return the value, which is bytes."""
        if isinstance(value, _OCTETS):
            return value
        raise TypeError(f"bytes are wanted, not {type(value).__name__}")


class FullOctets(Octets):
    """MariaDB's and MySQL's BINARY, which fills up with zeros what is shorter."""

    cache_ok = True

    def whole(self, value: Any) -> Any:
        """Return the value, which is as long as the column."""
        length = getattr(self.stored, "length", None) or 1
        if len(super().whole(value)) < length:
            raise ValueError(f"fewer than {length} bytes would be filled up with zeros; declare the column VARBINARY")
        return value


class LocalMoney(Kept):
    """PostgreSQL's money: its text is that of the server's locale, and comes back in other words than it was given."""

    cache_ok = True

    def whole(self, value: Any) -> Any:
        """Refuse any value."""
        raise TypeError("money comes back as a text in the words of the server's locale; declare the column numeric")


class JsonValue(Kept):
    """JSON. A key that is no text is refused: it would come back as one."""

    cache_ok = True
    takes_containers = True

    def whole(self, value: Any) -> Any:
        """Return the value, all of whose keys are texts."""
        require_text_keys(value)
        return value


def require_text_keys(value: object) -> None:
    """Check the keys of an object for JSON, and of those in it.

    Raises:
        ValueError: one is no text.
    """
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise ValueError(_TEXT_KEYS)
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for each in value:
            if isinstance(each, (dict, list, tuple)):
                require_text_keys(each)


def require_no_json_text(value: object) -> None:
    """Check that a value is not JSON already: earlier versions stored such a text on MariaDB as what it stands for.

    Raises:
        ValueError: it is; nobody can tell which is meant.
    """
    if not isinstance(value, str):
        return
    try:
        json.loads(value)
    except ValueError:
        return
    raise ValueError("the text is JSON itself; write the value that it stands for, as json.loads(text) returns it")
