"""Lanes: handlers that share places in a worker. All jobs have one lane, and each engine has one of its own.

A lane that is full, or whose handlers take long, keeps nobody else waiting: each claims what it has room for.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .running import Running

_AHEAD_SECONDS = 0.1
_BRIEF_SECONDS = 0.002
_NEW_SHARE = 1 / 8  # of the newest handler in the mean


class Lane:
    """What runs and what waits of some handlers.

    Args:
        places: how many of them run at once.
        most_ahead: how many are claimed at most before there is a place for them.
    """

    def __init__(self, places: int, most_ahead: int) -> None:
        self.places = places
        self.pace = Pace(places, most_ahead)
        self.in_flight = 0
        self.busy = 0  # threads at work for it
        self._line: deque[Running] = deque()
        self._mean_seconds: float | None = None

    def room(self) -> int:
        """Return how many more may be claimed."""
        return self.pace.capacity() - self.in_flight

    @property
    def waiting_since(self) -> float | None:
        """Return when the first in line was claimed, None when nobody waits for a thread."""
        try:
            return self._line[0].started_at
        except IndexError:
            return None

    def put(self, running: Running) -> None:
        """Add to the end of the line."""
        self._line.append(running)

    def next(self) -> Running | None:
        """Take the first in line if there is a place; the caller holds the lock of the threads."""
        if self.busy >= self.places:
            return None
        try:
            running = self._line.popleft()
        except IndexError:
            return None
        self.busy += 1
        return running

    def take_back(self) -> list[Running]:
        """Return the jobs no thread has begun with."""
        return emptied(self._line)

    def took(self, seconds: float) -> None:
        """Note how long a handler took."""
        before = self._mean_seconds
        self._mean_seconds = seconds if before is None else before + (seconds - before) * _NEW_SHARE

    def wanted_threads(self) -> int:
        """Return how many threads to wake: waking one costs more than a very short job, so few do many of those."""
        waiting = len(self._line)
        mean = 1.0 if self._mean_seconds is None else self._mean_seconds
        wanted = min(waiting, 1 + math.ceil(waiting * min(1.0, mean / _BRIEF_SECONDS)))
        return max(0, min(wanted, self.places - self.busy))


class Pace:
    """How many jobs to hold: as many as run at once, and ahead of them what is done within a moment.

    Claims cost a round trip, so short jobs are claimed ahead; long ones are left for workers that are free.
    """

    def __init__(self, concurrency: int, most_ahead: int) -> None:
        self._concurrency = concurrency
        self._most_ahead = most_ahead
        self._ahead = 0
        self._started = 0
        self._since = 0.0
        self._left = 0

    def capacity(self) -> int:
        """Return how many jobs may be in flight."""
        return self._concurrency + self._ahead

    def slow_down(self) -> None:
        """Claim nothing ahead until jobs are seen to be short again."""
        self._ahead = 0

    def gave_back(self, jobs: int) -> None:
        """Note that jobs leave without having run: they say nothing about how fast jobs are."""
        self._started -= jobs

    def started(self, jobs: Sequence[Running]) -> None:
        """Note that jobs were claimed."""
        if not jobs:
            return
        if not self._left:
            self._since = jobs[0].started_at
            self._started = 0
        self._started += len(jobs)
        self._left += len(jobs)

    def ended(self, in_flight: int, now: float) -> None:
        """Note how many are left, and look how fast they went."""
        ended = self._started - in_flight
        self._left = in_flight
        elapsed = max(1e-6, now - self._since)
        if ended > 0:
            self._ahead = min(self._most_ahead, int(ended / elapsed * _AHEAD_SECONDS))
            self._started, self._since = in_flight, now


def emptied(line: deque[Running]) -> list[Running]:
    """Take everything out of a line that others take from, too."""
    taken = []
    with suppress(IndexError):
        while True:
            taken.append(line.popleft())
    return taken
