"""How many requests each caller may send: a token bucket for each, in bounded memory."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

from ..core.clock import Clock
from ..core.errors import ConfigurationError

MOST_CALLERS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimit:
    """``burst`` requests at once, and ``per_second`` more as time goes by."""

    per_second: float = 20.0
    burst: int = 100

    def __post_init__(self) -> None:
        if not (self.per_second > 0 and self.burst >= 1):
            raise ConfigurationError(
                f"A rate limit of {self.per_second:g} a second and {self.burst} at once lets nobody in: use a rate "
                "above 0 and a burst of at least 1."
            )


class Buckets:
    """What each caller has left. When there are too many callers, those unheard of for longest start anew."""

    def __init__(self, limit: RateLimit, clock: Clock, most_callers: int = MOST_CALLERS) -> None:
        self._limit = limit
        self._clock = clock
        self._most_callers = most_callers
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._left)

    def wait_seconds(self, caller: str) -> float:
        """Let a request of the caller's through and return 0, or return after how many seconds one would be."""
        now, rate = self._clock.monotonic(), self._limit.per_second
        with self._lock:
            left, at = self._left.pop(caller, (float(self._limit.burst), now))
            left = min(float(self._limit.burst), left + (now - at) * rate)
            is_let_through = left >= 1.0
            self._left[caller] = (left - 1.0 if is_let_through else left, now)
            if len(self._left) > self._most_callers:
                self._left.popitem(last=False)
        return 0.0 if is_let_through else (1.0 - left) / rate
