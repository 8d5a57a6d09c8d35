"""What one step under a lease has done."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """How many messages it dealt with, and whether there is nothing more to read now."""

    delivered: int
    caught_up: bool
