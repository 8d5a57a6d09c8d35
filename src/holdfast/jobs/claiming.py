"""Claims what a worker can run: from the topics without limits together, from each limited one under its lock.

Trouble with one of them must not keep the others waiting, so each has a back-off of its own, and says so once when it
begins to fail and once when it works again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TypeVar

from ..core.clock import Clock
from ..core.retry import RetryPolicy
from .model import ClaimedJob, Suspect, Wanted, WorkerId
from .stores.protocol import WorkerStore
from .telemetry import WorkerTelemetry

_TOPICS_SECONDS = 1.0
_AFTER_ERRORS = RetryPolicy(max_retries=0, base_delay_seconds=0.1, max_delay_seconds=5.0)
Answer = TypeVar("Answer")


class BackOff:
    """One thing that is done again and again: after an error not before a pause, which grows while it fails."""

    def __init__(self, doing: str, telemetry: WorkerTelemetry, clock: Clock) -> None:
        self._doing = doing
        self._telemetry = telemetry
        self._clock = clock
        self._failures = 0
        self._due = -math.inf

    @property
    def due_in_seconds(self) -> float:
        """Return how long it must wait yet; infinity when it does not fail."""
        return max(0.0, self._due - self._clock.monotonic()) if self._failures else math.inf

    def attempt(self, call: Callable[[], Answer], otherwise: Answer) -> Answer:
        """Return what the call does, or the other answer when it fails or must wait. Errors end here."""
        if self._clock.monotonic() < self._due:
            return otherwise
        try:
            answer = call()
        except Exception as error:
            if not self._failures:
                self._telemetry.failing(self._doing, error)
            self._due = self._clock.monotonic() + _AFTER_ERRORS.delay_for_attempt(self._failures)
            self._failures += 1
            return otherwise
        if self._failures:
            self._telemetry.recovered(self._doing)
            self._failures = 0
        return answer


class Claiming:
    """Shares room between the topics without limits and each limited one, in turns: a busy one starves none.

    A server claims for several workers through one of these, from several threads: all they share is whose turn it is
    and what fails.
    """

    def __init__(self, store: WorkerStore, telemetry: WorkerTelemetry, clock: Clock) -> None:
        self._store = store
        self._telemetry = telemetry
        self._clock = clock
        self._turn = 0
        self._limited: frozenset[str] = frozenset()
        self._limited_until = -math.inf
        self._looking = self.back_off("Looking for limited topics")
        self._unlimited = self.back_off("Claiming jobs")
        self._by_topic: dict[str, BackOff] = {}
        self._suspects_of: dict[str, BackOff] = {}
        self._opens_at: dict[str, float] = {}

    def claim(
        self, worker: WorkerId, wanted: Wanted, capacity: int, mosts: Mapping[str, int] | None = None
    ) -> Iterator[list[ClaimedJob]]:
        """Claim up to ``capacity`` jobs, of each topic so many at most.

        They come source by source, to be started before the next is asked.
        """
        mosts = mosts or {}
        self._turn += 1
        limited = [topic for topic in wanted if topic in self._limited_topics()]
        sources = _rotated([None, *limited], self._turn)
        free = capacity
        for place, topic in enumerate(sources):
            share = math.ceil(free / (len(sources) - place))
            if share < 1:
                return
            jobs = self._claimed(worker, wanted, topic, share, mosts)
            free -= len(jobs)
            if jobs:
                yield jobs

    def claim_suspect(self, worker: WorkerId, can_run: Callable[[str, str], bool]) -> tuple[Suspect | None, bool]:
        """Claim, of the suspects that ``can_run``, the one that has waited longest of those that can begin [SUSPECT-1].

        Returns also whether any waits that can run.
        """
        waiting = self._store.suspects(can_run)
        for suspect in waiting:
            found = self._suspect_of(suspect.topic).attempt(partial(self._store.claim_suspect, worker, suspect), None)
            if found is not None:
                return found, True
        return None, bool(waiting)

    def back_off(self, doing: str) -> BackOff:
        """Return what keeps the trouble with one thing from all others."""
        return BackOff(doing, self._telemetry, self._clock)

    def _suspect_of(self, topic: str) -> BackOff:
        return self._suspects_of.setdefault(topic, self.back_off(f"Claiming suspects of the topic '{topic}'"))

    def retry_in_seconds(self) -> float:
        """Return when a claim that fails may be tried again, infinity when none does."""
        limited = [self._by_topic[topic] for topic in self._limited if topic in self._by_topic]
        return min(back_off.due_in_seconds for back_off in (self._unlimited, *limited))

    def opens_in_seconds(self, topics: Iterable[str]) -> float:
        """Return when a rate lets another job of one of the topics start, infinity when it keeps none waiting."""
        limited = (topic for topic in topics if topic in self._limited)
        opens_at = min((self._opens_at.get(topic, math.inf) for topic in limited), default=math.inf)
        return max(0.0, opens_at - self._clock.monotonic())

    def _claimed(
        self, worker: WorkerId, wanted: Wanted, topic: str | None, share: int, mosts: Mapping[str, int]
    ) -> list[ClaimedJob]:
        if topic is None:
            in_turn = {name: wanted[name] for name in _rotated(list(wanted), self._turn)}
            return self._unlimited.attempt(lambda: self._store.claim(worker, in_turn, share, mosts), [])
        limited = self._by_topic.setdefault(topic, self.back_off(f"Claiming jobs of the limited topic '{topic}'"))
        most = min(share, mosts.get(topic, share))
        nothing: list[ClaimedJob] = []
        jobs = limited.attempt(lambda: self._store.claim_limited(worker, topic, wanted[topic], most), nothing)
        fails = limited.due_in_seconds < math.inf
        seconds = None if fails else self._store.rate_opens_in(topic)
        self._opens_at[topic] = math.inf if seconds is None else self._clock.monotonic() + seconds
        return jobs

    def _limited_topics(self) -> frozenset[str]:
        now = self._clock.monotonic()
        if now >= self._limited_until:
            self._limited_until = now + _TOPICS_SECONDS
            self._limited = self._looking.attempt(lambda: frozenset(self._store.limited_topics()), self._limited)
        return self._limited


_Item = TypeVar("_Item")


def _rotated(items: list[_Item], turn: int) -> list[_Item]:
    start = turn % max(1, len(items))
    return items[start:] + items[:start]
