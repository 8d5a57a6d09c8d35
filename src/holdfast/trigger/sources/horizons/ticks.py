"""Clock ticks and local time: what a time bound has to allow for, whatever the database.

A bound is rounded down to the column's precision, so that a tick is read only once it has passed: a row updated later
in the checkpoint's own tick, with a lower key, would sort before the checkpoint and be missed. And local time goes back
when summer time ends: the repeated hour may be read only once it has passed for the second time.
"""

from __future__ import annotations

from datetime import datetime, timedelta

_STEP = timedelta(minutes=15)
_AHEAD = timedelta(hours=3)


def floor_to_precision(moment: datetime, digits: int | None) -> datetime:
    """Return ``moment`` rounded down to ``digits`` decimal places of a second (None: microseconds)."""
    if digits is None or digits >= 6:
        return moment
    step = 10 ** (6 - digits)
    return moment.replace(microsecond=moment.microsecond // step * step)


def moments_ahead(moment: datetime) -> list[datetime]:
    """Return ``moment`` (in UTC) and every moment soon after it at which local time may jump back.

    The earliest of their local times is a bound: whatever is written later has no earlier local time. Zones change on a
    quarter of an hour, and by less than three hours.
    """
    quarter = moment.replace(minute=moment.minute // 15 * 15, second=0, microsecond=0)
    steps = range(1, _AHEAD // _STEP + 1)
    return [moment, *(quarter + step * _STEP for step in steps)]
