"""Numbers of single precision, which Python has not."""

from __future__ import annotations

import struct
from typing import Any


def as_single(value: Any) -> float | None:
    """Return the number of single precision that is next to a number; None when it is beyond the largest."""
    try:
        found: float = struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return None
    return found


def shortest_single(value: Any) -> Any:
    """Return the number with the fewest digits that is the same in single precision: 0.1, not 0.10000000149011612."""
    if not isinstance(value, float):
        return value
    single, shorter = as_single(value), (float(f"{value:.{digits}g}") for digits in range(1, 9))
    return next((each for each in shorter if as_single(each) == single), value)
