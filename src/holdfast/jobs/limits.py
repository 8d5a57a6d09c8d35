"""How many jobs of a limited topic may start now: pure arithmetic on what runs and on token buckets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from .model import TopicLimits

_LATE_SECONDS = 0.05
_MOST_LATE = 0.99


@dataclass(slots=True)
class Bucket:
    """A rate's tokens: up to ``count`` of them, coming back evenly over ``seconds``."""

    count: int
    seconds: float
    tokens: float

    @classmethod
    def full(cls, count: int, seconds: float) -> Bucket:
        """Return a bucket nobody has drawn from."""
        return cls(count, seconds, float(count))

    @classmethod
    def refilled(cls, count: int, seconds: float, tokens: float, age_seconds: float) -> Bucket:
        """Return a bucket that held ``tokens`` some time ago; time that went backwards refills nothing.

        Nobody looks at the very moment at which it is full. What came in a moment after that, less than one token, is
        not lost, or a rate such as one in a tenth of a second would be a third less.
        """
        most = count + min(_MOST_LATE, _LATE_SECONDS * count / seconds)
        return cls(count, seconds, min(most, tokens + max(0.0, age_seconds) * count / seconds))

    @property
    def seconds_to_next(self) -> float:
        """Return how long until there is a token; 0 when there is one."""
        return max(0.0, (1.0 - self.tokens) * self.seconds / self.count)


@dataclass(slots=True)
class Room:
    """What a topic has room for, beside what is kept for suspects. Draw from it as jobs are picked."""

    limits: TopicLimits
    running: Mapping[str | None, int]
    reserved: Mapping[str | None, int] = field(default_factory=dict)
    buckets: dict[str, Bucket] = field(default_factory=dict)
    drawn: set[str] = field(default_factory=set)  # the buckets that hold less than was read

    def add_bucket(self, key: str, tokens: float, age_seconds: float) -> None:
        """Say what a bucket held some time ago; those not spoken of are full."""
        self.buckets[key] = Bucket.refilled(*self.rate_of(key), tokens, age_seconds)

    def free(self, capacity: int) -> int:
        """Return how many jobs of the topic may start, at most ``capacity``."""
        reserved = sum(self.reserved.values())
        if self.limits.max_running is not None:
            capacity = min(capacity, self.limits.max_running - sum(self.running.values()) - reserved)
        if self.limits.rate_count is not None:
            capacity = min(capacity, math.floor(self._bucket("").tokens) - reserved)
        return max(0, capacity)

    def free_of_key(self, key: str, capacity: int) -> int:
        """Return how many jobs of a key may start, at most ``capacity``."""
        reserved = self.reserved.get(key, 0)
        if self.limits.max_running_per_key is not None:
            capacity = min(capacity, self.limits.max_running_per_key - self.running.get(key, 0) - reserved)
        if self.limits.rate_count_per_key is not None and key:
            capacity = min(capacity, math.floor(self._bucket(key).tokens) - reserved)
        return max(0, capacity)

    @property
    def opens_in_seconds(self) -> float | None:
        """Return how long until a rate lets another job start; None when no bucket that was read is empty.

        Where it is the number of running jobs that keeps others waiting, the end of one is news.
        """
        if self.limits.rate_count is not None and self._bucket("").tokens < 1.0:
            return self._bucket("").seconds_to_next
        return min((each.seconds_to_next for each in self.buckets.values() if each.tokens < 1.0), default=None)

    def draw(self, key: str | None) -> None:
        """Note that a job starts."""
        if self.limits.rate_count is not None:
            self._draw_from("")
        if self.limits.rate_count_per_key is not None and key:
            self._draw_from(key)

    def _draw_from(self, key: str) -> None:
        self._bucket(key).tokens -= 1
        self.drawn.add(key)

    def _bucket(self, key: str) -> Bucket:
        if key not in self.buckets:
            self.buckets[key] = Bucket.full(*self.rate_of(key))
        return self.buckets[key]

    def rate_of(self, key: str) -> tuple[int, float]:
        """Return count and seconds of the rate a bucket is for."""
        if key:
            return self.limits.rate_count_per_key or 1, self.limits.rate_seconds_per_key or 1.0
        return self.limits.rate_count or 1, self.limits.rate_seconds or 1.0
