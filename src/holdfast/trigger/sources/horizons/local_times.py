"""The local times that may stand in a column without a zone: nobody sees the zones of other sessions.

A `timestamp` or `DATETIME` that the database fills holds the local time of the session that wrote the row. What can be
known is in which zones sessions begin: those that the server, the database and its roles are set to. UTC is always one
of them, because many drivers and frameworks set it. A bound in the zone that is behind all others [HORIZON-LOCAL] is
sound for each of them, and for any mixture: whoever writes in a zone that is ahead is read later by the difference,
but never missed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

UTC_ZONE = "UTC"


@dataclass(frozen=True, slots=True)
class ZoneTime:
    """The local time of a moment in a zone, and the earliest one from then on: local time can go back."""

    zone: str
    local: datetime
    earliest: datetime


@dataclass(frozen=True, slots=True)
class LocalTimes:
    """What one moment may be for those who write, by zone; the zone that is behind all others comes first."""

    zones: tuple[ZoneTime, ...]
    is_declared: bool = False

    @property
    def bound(self) -> datetime:
        """Return the local time that nobody can write below from now on."""
        return min(each.earliest for each in self.zones)

    @property
    def delay(self) -> timedelta:
        """Return how much later than others rows are read that are written in the zone furthest ahead."""
        return self.zones[-1].local - self.zones[0].local

    @property
    def sessions(self) -> str:
        """Return of whose rows the bound is good, to be said after 'every row' and the like."""
        if self.is_declared:
            return f", from sessions in time zone {self.zones[0].zone}"
        return f", from sessions whose local time is not behind that of {self.zones[0].zone}"

    def warning(self, column: str) -> str | None:
        """Return in a sentence that rows come late and what to do; None where they do not."""
        if not self.delay:
            return None
        behind, ahead = self.zones[0].zone, self.zones[-1].zone
        return (
            f"column '{column}' holds local time, and sessions may write it in {behind} or in {ahead}, so it is read "
            f"by that of {behind}: what is written in {ahead} comes {self.delay} late. If all writers use one zone, "
            "name it with cursor_timezone=…; or let the column's type or default say its zone."
        )


def local_times(found: Iterable[ZoneTime], *, is_declared: bool) -> LocalTimes:
    """Return local times in order; of zones that agree, UTC is named."""
    order = sorted(found, key=lambda each: (each.local, each.zone != UTC_ZONE, each.zone))
    return LocalTimes(tuple(order), is_declared)
