"""Stored moments in the future: a clock was wrong for a tick, and what it wrote would keep work waiting for years.

A slot is taken when it is due, a lease ends so long after it was extended, a bucket was filled when it was drawn from:
where such a moment was written by the clock that it is compared with, and lies ahead of it, that clock was wrong then,
or is now. Whoever looks believes the present clock once it has said the same for a minute, and nobody has written
the moment anew meanwhile. A clock that was set back by less than an hour is left alone: its moments come soon enough.

What people have chosen (the day on which a job is to run) is no such moment.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from .clock import Clock

_log = logging.getLogger("holdfast")
TOLERATED_SECONDS = 3600.0
"""How far ahead a moment may lie before the clock that wrote it counts as wrong."""
_TOLERATED = timedelta(seconds=TOLERATED_SECONDS)
_BELIEVED_SECONDS = 60.0


def lies_ahead(moment: datetime, now: datetime) -> bool:
    """Return whether a moment lies so far ahead that the clock which wrote it was wrong, or the present one is."""
    return moment - now > _TOLERATED


class MomentsAhead:
    """What one process has seen of such moments. They are of a database's or a store's time; ``clock`` counts here."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[str, tuple[datetime, float]] = {}
        self._sound: dict[str, datetime] = {}

    def is_wrong(
        self,
        title: str,
        moment: datetime,
        now: datetime,
        *,
        what: str,
        remedy: str,
        watched_seconds: float = _BELIEVED_SECONDS,
    ) -> bool:
        """Return whether a moment is to be taken back, which is logged; called again and again.

        ``title`` says whose it is, ``what`` it is (as in "its last slot") and ``remedy`` what becomes of it (as in "the
        slot is taken back"). It must have stayed as it is for ``watched_seconds``, and for a minute.
        """
        if moment <= now:
            self._sound[title] = moment
        if not lies_ahead(moment, now):
            self._seen.pop(title, None)
            return False
        since = self._seen_since(title, moment)
        if self._clock.monotonic() - since < max(watched_seconds, _BELIEVED_SECONDS):
            return False
        _log.warning(
            "%s: %s, %s, is in the future of the clock that it goes by, which says %s. One of both clocks was wrong; "
            "%s. Look at the time of the server.",
            f"{title[:1].upper()}{title[1:]}",
            what,
            moment.isoformat(timespec="seconds"),
            now.isoformat(timespec="seconds"),
            remedy,
        )
        return True

    def newest_sound(self, title: str, now: datetime) -> datetime:
        """Return the newest moment of a title that this process has seen and that did not lie ahead, else ``now``."""
        return min(self._sound.get(title, now), now)

    def _seen_since(self, title: str, moment: datetime) -> float:
        seen, since = self._seen.get(title, (None, 0.0))
        if seen != moment:
            since = self._clock.monotonic()
            self._seen[title] = moment, since
        return since
