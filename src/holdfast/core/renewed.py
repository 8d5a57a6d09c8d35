"""What is held for a time, is renewed before that has passed, and can be lost: leases, locks, messages at work."""

from __future__ import annotations

import threading
from collections.abc import Callable

from .clock import Clock


class Renewed:
    """Something held for ``ttl_seconds`` since its last renewal. Safe to use from several threads.

    ``lost`` is set once it is known to be someone else's, or can no longer be proved to be ours.

    Args:
        ttl_seconds: how long it lives without being renewed.
        renewed_at: when the write was begun that it is held by; now when left out.
        margin_seconds: how long before its end nobody acts on it any more, since clocks differ.
    """

    is_protected = False
    """Whether nobody can take it although it is not renewed."""

    def __init__(
        self, clock: Clock, ttl_seconds: float, renewed_at: float | None = None, margin_seconds: float = 0.0
    ) -> None:
        self._clock = clock
        self._renewed_at = clock.monotonic() if renewed_at is None else renewed_at
        self._margin_seconds = margin_seconds
        self._on_lost: list[Callable[[], None]] = []
        self.ttl_seconds = ttl_seconds
        self.lost = threading.Event()

    def seconds_since_renewal(self) -> float:
        """Return how long ago the last write that renewed it was begun."""
        return self._clock.monotonic() - self._renewed_at

    def seconds_left(self) -> float:
        """Return how long we may still act on it: until its end minus the margin, on our own clock."""
        return self.ttl_seconds - self._margin_seconds - self.seconds_since_renewal()

    def when_lost(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback`` once it is lost (at once when it already is); return what takes that back."""
        self._on_lost.append(callback)
        if self.lost.is_set():
            callback()
        return lambda: self._on_lost.remove(callback)

    def mark_lost(self) -> None:
        """Give it up as lost: nothing is renewed or recorded any more."""
        if not self.lost.is_set():
            self.lost.set()
            for callback in list(self._on_lost):
                callback()


class Recurring(Renewed):
    """Something done every so often while it is kept: nobody else can have it, so it cannot be lost.

    Args:
        interval_seconds: how often.
        act: what is done, on the thread that beats; what it raises is logged.
    """

    def __init__(self, clock: Clock, interval_seconds: float, act: Callable[[], None]) -> None:
        super().__init__(clock, 3 * interval_seconds)
        self._act = act

    def seconds_left(self) -> float:
        """Return how long until it is to be looked at."""
        return self.ttl_seconds

    def heartbeat(self, *, wait_seconds: float) -> None:
        """Do it once."""
        self._renewed_at = self._clock.monotonic()
        self._act()
