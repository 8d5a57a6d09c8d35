"""Times that are given as texts, before a database takes them for times: it would drop in silence what has no place.

PostgreSQL and MariaDB leave out the zone of a text where the column has none, the time of day where it is for dates,
and the date where it is for times of day. A text in ISO 8601 is looked at here; what else PostgreSQL knows, such as
``now``, is its own.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

_DAY = r"(?P<day>[0-9]{4}-[0-9]{1,2}-[0-9]{1,2})"
_CLOCK = r"(?P<clock>[0-9]{1,3}:[0-9]{2}(:[0-9]{2}([.,](?P<fraction>[0-9]+))?)?)"
_ZONE = r"(?P<zone>Z|[+-][0-9]{2}(:?[0-9]{2}(:?[0-9]{2})?)?)"
_MOMENT = re.compile(rf"\s*{_DAY}([T ]\s*{_CLOCK}\s*{_ZONE}?)?\s*", re.IGNORECASE)
_TIME_OF_DAY = re.compile(rf"\s*-?{_CLOCK}\s*{_ZONE}?\s*", re.IGNORECASE)
_BEGINS_WITH_A_DAY = re.compile(r"\s*[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}\b")
_BEFORE_CHRIST = re.compile(r".*\bBC\s*", re.IGNORECASE)
_MOST_MICROS = 6


def has_zone(text: str) -> bool:
    """Return whether the text is a time with a zone."""
    found = _MOMENT.fullmatch(text)
    return found is not None and found["zone"] is not None


def moment_text(text: str, *, is_iso: bool) -> str:
    """Return what is stored in a column without a zone: the same moment in UTC where the text has a zone.

    ``is_iso`` means that other texts than those of ISO 8601 are refused.

    Raises:
        ValueError: the database would leave something out; or the text is no time.
    """
    found = _MOMENT.fullmatch(text)
    if found is None:
        return _other(text, is_iso, "a time, such as 2026-01-31 12:00:00")
    _require_micros(found)
    if found["zone"] is None:
        return text
    try:
        moment = datetime.fromisoformat(f"{found['day']}T{found['clock']}{found['zone']}".upper())
        return str(moment.astimezone(UTC).replace(tzinfo=None))
    except (ArithmeticError, ValueError):
        raise ValueError("the text has a zone, for which there is no place here; pass a datetime") from None


def day_text(text: str, *, is_iso: bool) -> str:
    """Return what is stored in a column of dates. Raises as ``moment_text`` does."""
    found = _MOMENT.fullmatch(text)
    if found is None:
        return _other(text, is_iso, "a date, such as 2026-01-31")
    if (found["clock"] or "0").strip("0:.,"):
        raise ValueError("a date has no place for a time of day; leave it out of the text")
    return text


def time_text(text: str, *, is_iso: bool) -> str:
    """Return what is stored in a column of times of day without a zone. Raises as ``moment_text`` does."""
    found = _TIME_OF_DAY.fullmatch(text)
    if found is None:
        if _MOMENT.fullmatch(text):
            raise ValueError("a time of day has no place for a date; leave it out of the text")
        return _other(text, is_iso, "a time of day, such as 12:00:00")
    _require_micros(found)
    if found["zone"] is not None:
        raise ValueError("a time of day with a zone cannot be stored here; leave the zone out")
    return text


def zoned_text(text: str) -> str:
    """Return what is stored in a column that knows zones. Raises as ``moment_text`` does."""
    found = _MOMENT.fullmatch(text) or _TIME_OF_DAY.fullmatch(text)
    if found is not None:
        _require_micros(found)
    return text


def _other(text: str, is_iso: bool, wanted: str) -> str:
    """Let the database read a text of its own, unless that would be a date with something else behind it."""
    if is_iso or (_BEGINS_WITH_A_DAY.match(text) and not _BEFORE_CHRIST.fullmatch(text)):
        raise ValueError(f"the text is not {wanted}")
    return text


def _require_micros(found: re.Match[str]) -> None:
    if (found["fraction"] or "")[_MOST_MICROS:].strip("0"):
        raise ValueError("a time has no place for more than six digits of a second")
