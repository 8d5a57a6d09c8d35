"""How long this thread waits for a database: longer for what may look at whole tables, and not for what is lost."""

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


@contextmanager
def until_lost(lost: threading.Event) -> Iterator[None]:
    """Have this thread give a silent database up at once when a lease is lost: what it asked for is of no use any more.

    PyMySQL does not look up from its socket: there the deadline alone ends it.
    """
    before = getattr(_own, "lost", None)
    _own.lost = lost
    try:
        yield
    finally:
        _own.lost = before


def is_in_vain() -> bool:
    """Return whether what this thread waits for is of no use any more."""
    lost: threading.Event | None = getattr(_own, "lost", None)
    return lost is not None and lost.is_set()


def least_seconds() -> float:
    """Return how long this thread waits for an answer at least."""
    seconds: float = getattr(_own, "seconds", 0.0)
    return seconds
