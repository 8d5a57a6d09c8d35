"""The count at the end: what the shop accepted against what was recorded. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

Change = tuple[int, int]
"""One accepted change: an order's id and its version."""


@dataclass(frozen=True, slots=True)
class Tally:
    """What became of the accepted changes.

    ``overtaken`` counts changes of an order that changed again before it was read: a poll delivers the newest state.
    """

    accepted: int
    delivered: int
    overtaken: int
    duplicated: int
    lost: int


def tally(accepted: Collection[Change], recorded: Sequence[Change]) -> Tally:
    """Compare what was accepted with what was recorded."""
    times = Counter(recorded)
    newest: dict[int, int] = {}
    for order, version in times:
        newest[order] = max(version, newest.get(order, 0))
    missing = [change for change in set(accepted) if change not in times]
    overtaken = [change for change in missing if newest.get(change[0], 0) > change[1]]
    return Tally(
        accepted=len(accepted),
        delivered=len(times),
        overtaken=len(overtaken),
        duplicated=sum(count - 1 for count in times.values()),
        lost=len(missing) - len(overtaken),
    )
