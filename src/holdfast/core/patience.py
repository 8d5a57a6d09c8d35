"""Which threads may wait long for a database: those of commands and chores that may look at whole tables."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_UNHURRIED_SECONDS = 600.0
_own = threading.local()


@contextmanager
def unhurried() -> Iterator[None]:
    """Let this thread wait ten minutes for each answer where others give a database up after seconds."""
    before = least_seconds()
    _own.seconds = _UNHURRIED_SECONDS
    try:
        yield
    finally:
        _own.seconds = before


def least_seconds() -> float:
    """Return how long this thread waits for an answer at least."""
    seconds: float = getattr(_own, "seconds", 0.0)
    return seconds
