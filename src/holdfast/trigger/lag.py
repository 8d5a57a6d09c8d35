"""How far a trigger lags: the age of the oldest row that is committed and was not delivered. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from .sources.protocol import FetchResult


@dataclass(slots=True)
class Lag:
    """Since when the oldest undelivered row waits; None while nothing does.

    Where a row's own time is not known, it waits since it was first seen. ``caught_up_at`` is when nothing waited
    last, as far as it is known.
    """

    since: datetime | None = None
    caught_up_at: datetime | None = None

    def found(self, found: FetchResult, now: datetime) -> None:
        """Note what was read, before it is delivered."""
        if found.records:
            self._waits_since(found.oldest_at, now)
        else:
            self.delivered(found, now)

    def delivered(self, found: FetchResult, now: datetime) -> None:
        """Note that what was read is delivered: what waits now is behind the horizon, or is yet to be read."""
        if found.records and (found.caught_up or found.exhausted):
            self.since = None  # what waits now is none of those that were seen
        if found.waiting is not None:
            self._waits_since(found.waiting.at, now)
        elif found.caught_up:
            self.since, self.caught_up_at = None, now
        else:
            self._waits_since(found.newest_at, now)  # what comes next is not older

    def unread(self, now: datetime) -> None:
        """Note that nothing could be read by ``now``: rows may wait since it was last known that none did."""
        self.since = self.since or self.caught_up_at or now

    def seconds(self, now: datetime) -> float:
        """Return the lag."""
        since = self.since  # another thread may note something meanwhile
        return 0.0 if since is None else max(0.0, (now - since).total_seconds())

    def _waits_since(self, at: datetime | None, now: datetime) -> None:
        self.since = at or self.since or now
