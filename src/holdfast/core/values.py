"""Lossless text forms of the values a cursor can hold, and the way back.

A checkpoint outlives the process, so a cursor value must come back from JSON as exactly the value that went in:
microseconds, time zones, decimal scale, bytes and all. Text, whole numbers and booleans are JSON already;
every other type is written as text with its type name beside it.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from .errors import CursorSerializationError

_TYPE_KEY = "type"
_VALUE_KEY = "value"


def _utc_text(value: datetime) -> str:
    return value.astimezone(UTC).isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


def _duration_text(value: timedelta) -> str:
    return str(value // timedelta(microseconds=1))


def _parse_utc(text: str) -> datetime:
    parsed = datetime.fromisoformat(text)
    if parsed.tzinfo is None:
        raise ValueError("no time zone")
    return parsed.astimezone(UTC)


def _parse_naive(text: str) -> datetime:
    parsed = datetime.fromisoformat(text)
    if parsed.tzinfo is not None:
        raise ValueError("has a time zone")
    return parsed


def _parse_bool(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(text)
    return text == "true"


_PARSERS: dict[str, Callable[[str], object]] = {
    "text": str,
    "integer": int,
    "boolean": _parse_bool,
    "float": float,
    "decimal": Decimal,
    "timestamp": _parse_utc,
    "datetime": _parse_naive,
    "date": date.fromisoformat,
    "time": time.fromisoformat,
    "interval": lambda text: timedelta(microseconds=int(text)),
    "uuid": UUID,
    "bytes": lambda text: base64.b64decode(text, validate=True),
}


def kind_of(value: object) -> str:
    """Return the type name under which ``value`` is kept, such as ``timestamp`` or ``uuid``.

    Raises:
        CursorSerializationError: the type cannot be a cursor.
    """
    for python_type, kind in _KINDS:
        if isinstance(value, python_type):
            if kind == "timestamp" and isinstance(value, datetime) and value.tzinfo is None:
                return "datetime"
            if kind == "float" and isinstance(value, float) and math.isnan(value):
                break
            return kind
    raise CursorSerializationError(
        f"A value of type {type(value).__name__} cannot be a cursor or key (NULL and NaN cannot either): choose a "
        "column with a total order, such as a timestamp, a number, text, uuid or bytes."
    )


_KINDS: tuple[tuple[type, str], ...] = (
    (bool, "boolean"),
    (int, "integer"),
    (str, "text"),
    (float, "float"),
    (Decimal, "decimal"),
    (datetime, "timestamp"),
    (date, "date"),
    (time, "time"),
    (timedelta, "interval"),
    (UUID, "uuid"),
    (bytes, "bytes"),
    (bytearray, "bytes"),
    (memoryview, "bytes"),
)

_TO_TEXT: dict[str, Callable[[Any], str]] = {
    "text": str,
    "integer": str,
    "boolean": lambda value: "true" if value else "false",
    "float": repr,
    "decimal": str,
    "timestamp": _utc_text,
    "datetime": lambda value: value.isoformat(timespec="microseconds"),
    "date": date.isoformat,
    "time": lambda value: value.isoformat(timespec="microseconds"),
    "interval": _duration_text,
    "uuid": str,
    "bytes": lambda value: base64.b64encode(bytes(value)).decode("ascii"),
}


def to_text(value: object) -> tuple[str, str]:
    """Return ``(kind, text)``; the pair determines the value."""
    kind = kind_of(value)
    return kind, _TO_TEXT[kind](value)


def from_text(kind: str, text: object) -> object:
    """Return the value that ``to_text`` was given.

    Raises:
        CursorSerializationError: the kind is unknown or the text does not fit it.
    """
    parser = _PARSERS.get(kind)
    if parser is None:
        raise CursorSerializationError(
            f"The stored cursor is of kind {kind!r}, which this version does not know: upgrade Holdfast, or reset the "
            "trigger to a cursor."
        )
    if not isinstance(text, str):
        raise CursorSerializationError(f"The stored {kind} cursor is not text but {type(text).__name__}.")
    try:
        return parser(text)
    except (ValueError, ArithmeticError) as error:
        raise CursorSerializationError(f"The stored cursor {text!r} is not a valid {kind}.") from error


def to_json(value: object) -> object:
    """Return a JSON form: text, whole numbers and booleans as they are, anything else as ``{type, value}``."""
    kind = kind_of(value)
    if kind in ("text", "boolean", "integer"):
        return value
    return {_TYPE_KEY: kind, _VALUE_KEY: _TO_TEXT[kind](value)}


def from_json(form: object) -> object:
    """Return the value that ``to_json`` was given."""
    if isinstance(form, (str, bool, int)):
        return form
    if isinstance(form, dict) and set(form) == {_TYPE_KEY, _VALUE_KEY}:
        return from_text(str(form[_TYPE_KEY]), form[_VALUE_KEY])
    raise CursorSerializationError(f"A stored key of type {type(form).__name__} cannot be read as a cursor value.")
