"""The only module that reads a clock or draws randomness.

Everything else is handed a ``Clock``, so that a test can step time and a decision can be replayed.
"""

from __future__ import annotations

import secrets
import time
from datetime import UTC, datetime, timedelta
from threading import Event
from typing import Protocol


class Clock(Protocol):
    """Wall time for people, monotonic time for decisions, waiting for both."""

    def now(self) -> datetime:
        """Return the machine's wall time, aware, in UTC."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        ...

    def wait(self, event: Event, seconds: float) -> bool:
        """Wait until ``event`` is set or ``seconds`` have passed; return whether it is set."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now(self) -> datetime:
        """Return the machine's wall time, aware, in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        return time.monotonic()

    def wait(self, event: Event, seconds: float) -> bool:
        """Wait until ``event`` is set or ``seconds`` have passed; return whether it is set."""
        return event.wait(max(0.0, seconds))


class StoreTime:
    """A store's own time, carried forward by the monotonic clock between answers.

    The estimate never runs ahead of the store: an answer's time is at most as old as its arrival.
    Before the first answer that tells a time, the machine's wall clock stands in.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._base = clock.now()
        self._at = clock.monotonic()

    def learn(self, store_time: datetime | None) -> datetime:
        """Take over the time of an answer that has just arrived, and return the present estimate."""
        if store_time is not None:
            self._base = store_time
            self._at = self._clock.monotonic()
        return self.now()

    def now(self) -> datetime:
        """Return the present estimate of the store's time."""
        return self._base + timedelta(seconds=self._clock.monotonic() - self._at)


def jittered(seconds: float) -> float:
    """Return a random time from half of ``seconds`` to all of it, so that those who wait do not come back together."""
    return seconds * (0.5 + secrets.randbelow(1001) / 2000)


def new_id(length: int = 32) -> str:
    """Return ``length`` random hexadecimal digits."""
    return secrets.token_hex((length + 1) // 2)[:length]


def random_fraction() -> float:
    """Return a random number from 0 up to 1."""
    return secrets.randbelow(1 << 53) / (1 << 53)
