"""Clock ticks: a time bound is rounded down to the column's precision, so that a tick is read only once it has passed.

A row updated later in the checkpoint's own tick, with a lower key, would sort before the checkpoint and be missed.
"""

from __future__ import annotations

from datetime import datetime


def floor_to_precision(moment: datetime, digits: int | None) -> datetime:
    """Return ``moment`` rounded down to ``digits`` decimal places of a second (None: microseconds)."""
    if digits is None or digits >= 6:
        return moment
    step = 10 ** (6 - digits)
    return moment.replace(microsecond=moment.microsecond // step * step)
