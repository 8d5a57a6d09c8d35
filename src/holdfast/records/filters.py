"""Which letters or entries are wanted: asked of a database, or decided here for tables that filter less well."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Table, or_

from ..core.key_text import is_plain
from .failure_text import words_contain
from .times import utc_moment

_APPLICATION = "application"
_EXACT = ("engine", "instance_id", "status", "operation", "correlation_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFilter:
    """What letters and entries are chosen by alike: those are wanted that fit everything that is not None.

    ``error`` is a part of the error's text, in any case. With an ``application`` those of others are not wanted; those
    that tell none are.
    """

    engine: str | None = None
    instance_id: str | None = None
    status: StrEnum | None = None
    since: datetime | None = None
    until: datetime | None = None
    correlation_id: str | None = None
    error: str | None = None
    application: str | None = None


def can_match(wanted: RecordFilter) -> bool:
    """Return whether anything could be wanted: not between dates the wrong way round, nor with an impossible id.

    Raises:
        ConfigurationError: a date has no time zone.
    """
    since, until = (None if moment is None else utc_moment(moment) for moment in (wanted.since, wanted.until))
    if since is not None and until is not None and since >= until:
        return False
    return all(is_plain(getattr(wanted, name, None) or "") for name in (*_EXACT, "error", "application"))


def conditions(wanted: RecordFilter, table: Table, *, moment: str, error: str) -> Iterator[ColumnElement[bool]]:
    """Yield what holds for the rows that are wanted; ``moment`` and ``error`` are the columns asked about those."""
    for name, value in _exact(wanted):
        yield table.c[name] == str(value)
    if wanted.application is not None:
        yield or_(table.c.application == wanted.application, table.c.application.is_(None))
    if wanted.since is not None:
        yield table.c[moment] >= wanted.since
    if wanted.until is not None:
        yield table.c[moment] < wanted.until
    if wanted.error is not None:
        yield words_contain(table.c[error], wanted.error)


def is_wanted(record: object, wanted: RecordFilter, *, moment: str, error: str) -> bool:
    """Return whether a letter or an entry fits; ``moment`` and ``error`` are its fields asked about those."""
    at, text = getattr(record, moment), getattr(record, error) or ""
    return (
        all(getattr(record, name) == value for name, value in _exact(wanted))
        and (wanted.application is None or getattr(record, _APPLICATION) in (None, wanted.application))
        and (wanted.since is None or at >= wanted.since)
        and (wanted.until is None or at < wanted.until)
        and (wanted.error is None or wanted.error.casefold() in text.casefold())
    )


def _exact(wanted: RecordFilter) -> Iterator[tuple[str, Any]]:
    asked = ((name, getattr(wanted, name, None)) for name in _EXACT)
    return (each for each in asked if each[1] is not None)
