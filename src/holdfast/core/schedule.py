"""When something is to happen again and again: a cron expression in a time zone, and the slots it names.

Expressions are read by cronsim, which does what Debian's cron does: five fields (minute, hour, day of month, month, day
of week), or six with the second first. Where a day of the month and a day of the week are both given, either will do.
When clocks change, an expression that names its minutes and hours runs once: one inside the hour that is left out runs
at the end of the gap, and one inside the hour that comes twice runs the first time. An expression whose minute or hour
starts with ``*``, and one of six fields, goes by time that has really passed: it runs in both hours, or in neither.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from .errors import ConfigurationError

_SOME_MOMENT = datetime(2000, 1, 1, tzinfo=UTC)


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

    def __post_init__(self) -> None:
        object.__setattr__(self, "_zone", _zone(self.title, self.timezone))
        self.next_after(_SOME_MOMENT)

    def next_after(self, moment: datetime) -> datetime:
        """Return the first slot later than ``moment``, in UTC.

        Raises:
            ConfigurationError: there is none in the next fifty years.
        """
        try:
            for slot in CronSim(self.cron, moment.astimezone(self._zone)):
                # Inside an hour that comes twice cronsim starts from its first pass, which may be over.
                if (found := slot.astimezone(UTC)) > moment:
                    return found
        except (CronSimError, AssertionError, ValueError, AttributeError, TypeError) as error:
            raise ConfigurationError(
                f"The cron expression {self.cron!r} of {self.title} cannot be read: {error}. Write minute, hour, day "
                "of month, month and day of week, as in '30 6 * * MON-FRI'."
            ) from error
        raise ConfigurationError(
            f"The cron expression {self.cron!r} of {self.title} names no moment in the next fifty years."
        )

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


def _zone(title: str, timezone: str) -> ZoneInfo:
    try:
        return ZoneInfo(timezone)
    except (KeyError, ValueError, OSError, TypeError) as error:
        raise ConfigurationError(
            f"{title[:1].upper()}{title[1:]} is in the time zone {timezone!r}, which is not known here. Use a name "
            "such as 'Europe/Berlin'; on a system without time zones, install tzdata."
        ) from error
