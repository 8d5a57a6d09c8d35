"""When something is to happen again and again: a cron expression in a time zone, and the slots it names.

Expressions are read by cronsim, which does what Debian's cron does: five fields (minute, hour, day of month, month, day
of week), or six with the second first. Where a day of the month and a day of the week are both given, either will do.
When clocks change, an expression that names its minutes and hours runs once: one inside the hour that is left out runs
at the end of the gap, and one inside the hour that comes twice runs the first time. An expression whose minute or hour
starts with ``*`` goes by time that has really passed: it runs in both hours, or in neither. Of six fields the last five
decide that. (cronsim leaves all of six to the time that has passed, so their seconds are counted here.)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from .errors import ConfigurationError

_SOME_MOMENT = datetime(2000, 1, 1, tzinfo=UTC)
_SECOND, _MINUTE = timedelta(seconds=1), timedelta(minutes=1)


@dataclass(frozen=True)
class Schedule:
    """The slots of a cron expression.

    Args:
        title: what people call that which has the schedule, such as "periodic job 'report'".
        cron: the expression.
        timezone: the zone its hours and days are of.

    Raises:
        ConfigurationError: the expression or the zone cannot be used.
    """

    title: str
    cron: str
    timezone: str = "UTC"
    _zone: ZoneInfo = field(init=False, repr=False)
    _minutes: str = field(init=False, repr=False)
    _seconds: tuple[timedelta, ...] = field(init=False, repr=False)  # none: cronsim is given the whole expression

    def __post_init__(self) -> None:
        object.__setattr__(self, "_zone", _zone(self.title, self.timezone))
        with self._readable():
            minutes, seconds = _apart(self.cron)
        object.__setattr__(self, "_minutes", minutes)
        object.__setattr__(self, "_seconds", seconds)
        self.next_after(_SOME_MOMENT)

    def next_after(self, moment: datetime) -> datetime:
        """Return the first slot later than ``moment``, in UTC.

        Raises:
            ConfigurationError: there is none in the next fifty years.
        """
        with self._readable():
            for slot in self._from(moment):
                # Inside an hour that comes twice cronsim starts from its first pass, which may be over.
                if slot > moment:
                    return slot
        raise ConfigurationError(
            f"The cron expression {self.cron!r} of {self.title} names no moment in the next fifty years."
        )

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except (CronSimError, AssertionError, ValueError, AttributeError, TypeError) as error:
            raise ConfigurationError(
                f"The cron expression {self.cron!r} of {self.title} cannot be read: {error}. Write minute, hour, day "
                "of month, month and day of week, as in '30 6 * * MON-FRI'."
            ) from error

    def _from(self, moment: datetime) -> Iterator[datetime]:
        """Yield the slots from about a moment on."""
        if not self._seconds:
            yield from (slot.astimezone(UTC) for slot in CronSim(self._minutes, moment.astimezone(self._zone)))
            return
        before_its_minute = moment.replace(second=0, microsecond=0) - _SECOND
        for minute in CronSim(self._minutes, before_its_minute.astimezone(self._zone)):
            yield from (minute.astimezone(UTC) + second for second in self._seconds)

    def latest_slot(self, after: datetime, now: datetime) -> datetime | None:
        """Return the newest slot later than ``after`` that is not later than ``now``, None when there is none.

        It halves the time between what it found and ``now``, so that a long absence costs no more than a short one.
        """
        newest, following, end = None, self.next_after(after), now
        while following <= now:
            newest = following
            middle = newest + (end - newest) / 2
            found = self.next_after(middle)
            if found <= now:
                newest = found
            else:
                end = middle
            following = self.next_after(newest)
        return newest


def _apart(cron: str) -> tuple[str, tuple[timedelta, ...]]:
    """Return an expression that names its minutes and hours without its seconds, and these; else the whole of it."""
    first, *rest = cron.split()
    if len(rest) != 5 or rest[0].startswith("*") or rest[1].startswith("*"):
        return cron, ()
    start = _SOME_MOMENT
    of_a_minute = takewhile(lambda second: second < start + _MINUTE, CronSim(f"{first} * * * * *", start - _SECOND))
    return " ".join(rest), tuple(second - start for second in of_a_minute)


def _zone(title: str, timezone: str) -> ZoneInfo:
    try:
        return ZoneInfo(timezone)
    except (KeyError, ValueError, OSError, TypeError) as error:
        raise ConfigurationError(
            f"{title[:1].upper()}{title[1:]} is in the time zone {timezone!r}, which is not known here. Use a name "
            "such as 'Europe/Berlin'; on a system without time zones, install tzdata."
        ) from error
