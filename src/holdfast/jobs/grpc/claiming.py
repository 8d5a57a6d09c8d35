"""Claims for the streams. Runs on threads: a claim waits for the database."""

from __future__ import annotations

from collections.abc import Sequence

from ...core.clock import Clock
from ..model import ClaimedJob, WorkerId
from ..stores.base import SqlJobStore

_TOPICS_SECONDS = 1.0


class Claiming:
    """Claims from plain topics in one statement, and from limited ones under their lock."""

    def __init__(self, store: SqlJobStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._limited: frozenset[str] = frozenset()
        self._limited_until = clock.monotonic()

    def claim(self, owner: WorkerId, topics: Sequence[str], capacity: int) -> list[ClaimedJob]:
        """Claim up to ``capacity`` jobs, topics earlier in the list first."""
        jobs = self._store.claim(owner, topics, capacity)
        for topic in topics if self._limited_topics() else ():
            if topic in self._limited and len(jobs) < capacity:
                jobs += self._store.claim_limited(owner, topic, capacity - len(jobs))
        return jobs

    def _limited_topics(self) -> frozenset[str]:
        now = self._clock.monotonic()
        if now >= self._limited_until:
            self._limited = frozenset(self._store.limited_topics())
            self._limited_until = now + _TOPICS_SECONDS
        return self._limited
