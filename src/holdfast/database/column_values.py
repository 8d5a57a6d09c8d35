"""Whether a value can stand in a column, decided before a database sees it: databases guess, each in its own way.

MariaDB takes 'nope' for the number 0 and '42abc' for 42, PostgreSQL rounds 7.5 to 8 and a time to its day. Here a value
is of the column's type, or a text that writes one such value exactly, such as '42'; anything else fits no column.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from typing import Any, TypeAlias
from uuid import UUID

from sqlalchemy import (
    BINARY,
    REAL,
    BigInteger,
    Boolean,
    Date,
    DateTime,
    Enum,
    Float,
    Integer,
    Numeric,
    SmallInteger,
    String,
    Time,
    Uuid,
)
from sqlalchemy.dialects import mssql, mysql, postgresql
from sqlalchemy.types import TypeDecorator, TypeEngine, _Binary

from ..core.key_text import is_plain
from .single_precision import as_single, shortest_single

_WHOLE = re.compile(r"-?(0|[1-9][0-9]*)")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_EXACT_FLOAT = 2**53
_MICROS = 6
_MYSQL = ("mysql", "mariadb")


def whole_number(text: str) -> int:
    """Return the number that a text is, written as we would write it.

    Raises:
        ValueError: it is none.
    """
    if not _WHOLE.fullmatch(text):
        raise ValueError(text)
    return int(text)


def _decimal(text: str) -> Decimal:
    if not _NUMBER.fullmatch(text):
        raise ValueError(text)
    return Decimal(text)


def _finite(text: str) -> float:
    number = float(_decimal(text))
    if math.isinf(number):
        raise ValueError(text)
    return number


def _uuid(text: str) -> UUID:
    found = UUID(text)
    if text.lower() not in (str(found), found.hex):  # it takes braces and more
        raise ValueError(text)
    return found


FROM_TEXT: dict[type, Callable[[str], object]] = {
    datetime: datetime.fromisoformat,
    date: date.fromisoformat,
    time: time.fromisoformat,
    Decimal: _decimal,
    UUID: _uuid,
    int: whole_number,
    float: _finite,
}
"""How a text is read as a value of a type: all of it, or ValueError (of decimals ArithmeticError, too)."""


Fit: TypeAlias = Callable[[object], object]
"""Takes a value and returns it as a column has it; raises ValueError, its message the end of a sentence."""


def fitting(value: object, column_type: TypeEngine[Any], dialect_name: str) -> object:
    """Return the value as its column has it. None, and a value of a type that is not known here, stay as they are.

    Raises:
        ValueError: it cannot stand there; the message is the end of a sentence.
    """
    fit = fit_of(column_type, dialect_name)
    return value if fit is None or value is None else fit(value)


def fit_of(column_type: TypeEngine[Any], dialect_name: str) -> Fit | None:
    """Return what fits values other than None into a column; None for a type that is not known here."""
    kept = _own(column_type)
    if dialect_name == "sqlite" and _is_unknown_to_sqlite(kept):
        return None
    found = next((fit for kinds, fit in _FITS if isinstance(kept, kinds)), None)
    if found is _as_whole:
        return partial(_as_whole, is_boolean=getattr(kept, "display_width", None) == 1, most=_range(kept, dialect_name))
    if found is _as_decimal and dialect_name == "sqlite":  # it keeps more digits than its column says
        return partial(_as_decimal, Numeric())
    return None if found is None else partial(found, kept)


def key_fit_of(column_type: TypeEngine[Any], dialect_name: str) -> Fit | None:
    """Return what fits values into a column that rows are found by; None for a type that is not known here.

    A value that is finer than its column declares equals none that is stored there. The database would find nothing by
    it, but store it in a rounded form, so it is refused.
    """
    fit, exact = fit_of(column_type, dialect_name), _exact_of(_own(column_type), dialect_name)
    if fit is None or exact is None:
        return fit
    return lambda value: exact(fit(value))


def _exact_of(kept: Any, dialect_name: str) -> Fit | None:
    """Return what refuses the values that a column would not hold as they are."""
    match kept:
        case REAL() | mysql.FLOAT() if dialect_name != "sqlite":
            return _as_single
        case DateTime() | Time() if dialect_name != "sqlite":
            return partial(_in_digits_of_a_second, _digits_of_a_second(kept, dialect_name))
        case BINARY() if kept.length is not None and dialect_name != "sqlite":
            return partial(_of_length, kept.length)
    return None


def _as_single(value: Any) -> object:
    """Return a number as single precision has it, in double precision: the databases compare in that."""
    single = as_single(value)
    if single is None or value not in (single, shortest_single(single)):
        raise ValueError("it has more digits than single precision keeps")
    return single


def _digits_of_a_second(kept: Any, dialect_name: str) -> int:
    declared = getattr(kept, "fsp", None) if dialect_name in _MYSQL else getattr(kept, "precision", None)
    if declared is None:
        return 0 if dialect_name in _MYSQL else _MICROS
    return min(int(declared), _MICROS)


def _in_digits_of_a_second(digits: int, value: Any) -> object:
    micros = getattr(value, "microsecond", getattr(value, "microseconds", 0))
    if micros % 10 ** (_MICROS - digits):
        raise ValueError(f"it must have at most {digits} digits of a second" if digits else "it must be whole seconds")
    return value


def _of_length(length: int, value: Any) -> object:
    if len(value) != length:
        raise ValueError(f"it must be {length} bytes, neither less nor more")
    return value


def shown_type(column_type: TypeEngine[Any]) -> str:
    """Return a column's type for people."""
    return str(_own(column_type))


def _own(column_type: TypeEngine[Any]) -> Any:
    """Return the type that the database has: what is behind one of ours, or behind a domain."""
    if isinstance(column_type, TypeDecorator):
        return column_type.impl_instance
    return column_type.data_type if isinstance(column_type, postgresql.DOMAIN) else column_type


def _is_unknown_to_sqlite(kept: object) -> bool:
    """Return whether SQLite has a type it does not know: it takes that for numbers, and compares text with text."""
    return isinstance(kept, Numeric) and not isinstance(kept, Float) and kept.precision is None


def _as_text(kept: Any, value: object) -> object:
    """A whole number and a UUID are written in one way only."""
    if isinstance(value, (int, UUID)) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise ValueError(f"it must be text, not {type(value).__name__}")
    if not is_plain(value):
        raise ValueError("it holds a NUL character or half of a surrogate pair")
    if isinstance(kept, Enum) and kept.enums and value not in kept.enums:
        raise ValueError(f"it must be one of {', '.join(map(repr, kept.enums))}")
    return value


def _as_whole(value: object, *, is_boolean: bool, most: tuple[int, int]) -> object:
    """A column of width 1 is how MySQL spells BOOLEAN."""
    number = value if type(value) is int else int(value) if is_boolean and type(value) is bool else _whole(value)
    if not most[0] <= number <= most[1]:
        raise ValueError(f"it must be a whole number from {most[0]} to {most[1]}")
    return number


def _whole(value: object) -> int:
    try:
        if isinstance(value, str):
            return whole_number(value)
        if isinstance(value, (float, Decimal)):
            number = int(value)
            if value == number and abs(number) <= _EXACT_FLOAT:
                return number
        if not isinstance(value, bool):
            return operator.index(value)  # type: ignore[arg-type]  # it refuses what is no number
    except (TypeError, ValueError, OverflowError):
        pass
    raise ValueError("it must be a whole number")


def _range(kept: Any, dialect_name: str) -> tuple[int, int]:
    bits = 64 if dialect_name == "sqlite" else next(bits for kinds, bits in _BITS if isinstance(kept, kinds))
    if getattr(kept, "unsigned", False) or isinstance(kept, (mssql.TINYINT, mysql.BIT)):
        return 0, 2**bits - 1
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def _as_decimal(kept: Any, value: object) -> object:
    if isinstance(value, float):
        value = repr(value)
    number = _number(value, _decimal)
    decimal = number if isinstance(number, Decimal) else Decimal(number)
    if kept.precision is not None:
        _require_digits(decimal, kept.precision - (kept.scale or 0), kept.scale or 0)
    return decimal


def _require_digits(number: Decimal, before: int, behind: int) -> None:
    _, digits, exponent = number.as_tuple()
    written = "".join(map(str, digits)).rstrip("0")
    last = int(exponent) + len(digits) - len(written)
    if written and (last < -behind or len(written) + last > before):
        raise ValueError(f"it must be a number of at most {before} digits before the point and {behind} behind it")


def _as_number(_kept: Any, value: object) -> object:
    return _number(value, _finite)


def _number(value: object, from_text: Callable[[str], Any]) -> Any:
    try:
        if isinstance(value, str):
            return from_text(value)
        if isinstance(value, (int, float, Decimal)) and not isinstance(value, bool) and math.isfinite(value):
            return value
    except (ValueError, ArithmeticError):
        pass
    raise ValueError("it must be a number")


def _as_truth(_kept: Any, value: object) -> object:
    if isinstance(value, int) and value in (0, 1):
        return bool(value)
    raise ValueError("it must be True or False")


def _as_uuid(_kept: Any, value: object) -> object:
    return value if isinstance(value, UUID) else _read(value, UUID, "a UUID")


def _as_moment(_kept: Any, value: object) -> object:
    if isinstance(value, date) and not isinstance(value, datetime):
        return datetime.combine(value, time.min)
    return value if isinstance(value, datetime) else _read(value, datetime, "a datetime")


def _as_day(_kept: Any, value: object) -> object:
    if isinstance(value, datetime):
        if value.timetz() != time.min:
            raise ValueError("it must be a date, without a time")
        return value.date()
    return value if isinstance(value, date) else _read(value, date, "a date")


def _as_clock(_kept: Any, value: object) -> object:
    return value if isinstance(value, (time, timedelta)) else _read(value, time, "a time of day")


def _as_bytes(_kept: Any, value: object) -> object:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return value
    raise ValueError(f"it must be bytes, not {type(value).__name__}")


def _read(value: object, wanted: type, called: str) -> object:
    try:
        if isinstance(value, str):
            return FROM_TEXT[wanted](value)
    except ValueError:
        pass
    raise ValueError(f"it must be {called}")


# The first that fits counts: a subclass stands before what it is one of.
_FITS: tuple[tuple[tuple[type, ...], Callable[..., object]], ...] = (
    ((String,), _as_text),
    ((Uuid,), _as_uuid),
    ((Boolean,), _as_truth),
    ((Integer, mysql.YEAR, mysql.BIT), _as_whole),
    ((Float,), _as_number),
    ((Numeric,), _as_decimal),
    ((DateTime,), _as_moment),
    ((Date,), _as_day),
    ((Time,), _as_clock),
    ((_Binary,), _as_bytes),
)
_BITS: tuple[tuple[tuple[type, ...], int], ...] = (
    ((mysql.TINYINT, mssql.TINYINT), 8),
    ((SmallInteger, mysql.YEAR), 16),
    ((mysql.MEDIUMINT,), 24),
    ((BigInteger, mysql.BIT), 64),
    ((Integer,), 32),
)
