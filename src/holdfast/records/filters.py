"""Which letters or entries are wanted: asked of a database, or decided here for tables that filter less well."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from ..core.key_text import is_plain
from .times import utc_moment

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


def allowed(wanted: RecordFilter) -> Iterator[tuple[str, tuple[str | None, ...]]]:
    """Yield the fields that are asked for by value, and the values they may have."""
    for name in _EXACT:
        value = getattr(wanted, name, None)
        if value is not None:
            yield name, (str(value),)
    if wanted.application is not None:
        yield "application", (wanted.application, None)
