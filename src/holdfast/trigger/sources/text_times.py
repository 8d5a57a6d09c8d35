"""Times that SQLite keeps as text: compared as text, so they must be written the way the column writes them."""

from __future__ import annotations

from datetime import UTC, datetime


def in_layout_of(sample: str, moment: datetime) -> str:
    """Return ``moment`` written like ``sample``: the same separator, number of decimals and zone suffix."""
    zone = _zone_of(sample)
    fraction = sample[: len(sample) - len(zone)].partition(".")[2]
    timespec = "seconds" if not fraction else "milliseconds" if len(fraction) <= 3 else "microseconds"
    if moment.tzinfo is not None:
        moment = moment.astimezone(datetime.fromisoformat(sample).tzinfo or UTC).replace(tzinfo=None)
    return moment.isoformat(sep=sample[10:11] or " ", timespec=timespec) + zone


def _zone_of(sample: str) -> str:
    return next((sample[at:] for at in range(19, len(sample)) if sample[at] in "Zz+-"), "")
