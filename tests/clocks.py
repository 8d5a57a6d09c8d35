"""Time that a test steps by hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from threading import Event

from holdfast.core.clock import SystemClock
from holdfast.lease.documents import DocumentStore, ETag, Snapshot, Written


class SteppedClock:
    """A clock that stands still until ``advance``; waiting on it advances it."""

    def __init__(self) -> None:
        self.passed = 0.0
        self._start = datetime(2026, 1, 1, tzinfo=UTC)

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self.passed)

    def monotonic(self) -> float:
        return self.passed

    def wait(self, event: Event, seconds: float) -> bool:
        self.passed += max(0.0, seconds)
        return event.is_set()

    def advance(self, seconds: float) -> None:
        self.passed += seconds


class StillClock(SteppedClock):
    """A clock that only ``advance`` moves: whoever waits on it, such as a keeper, looks again after a moment."""

    def wait(self, event: Event, seconds: float) -> bool:
        return event.wait(min(seconds, 0.05))


class HurriedClock(SystemClock):
    """The machine's clock, on which no wait takes longer than a moment: pauses are told as they are, and cut short."""

    def wait(self, event: Event, seconds: float) -> bool:
        return super().wait(event, min(seconds, 0.05))


class SteppedTimeStore:
    """A real store whose answers tell the time of a stepped clock instead of its own."""

    def __init__(self, inner: DocumentStore, clock: SteppedClock) -> None:
        self.inner = inner
        self._clock = clock

    @property
    def skew_margin_seconds(self) -> float | None:
        return self.inner.skew_margin_seconds

    def read(self, name: str) -> Snapshot | None:
        snapshot = self.inner.read(name)
        return None if snapshot is None else replace(snapshot, store_time=self._clock.now())

    def create(self, name: str, content: bytes) -> Written:
        return replace(self.inner.create(name, content), store_time=self._clock.now())

    def replace(self, name: str, content: bytes, if_match: ETag) -> Written:
        return replace(self.inner.replace(name, content, if_match), store_time=self._clock.now())

    def delete(self, name: str, if_match: ETag) -> None:
        self.inner.delete(name, if_match)

    def list(self, prefix: str) -> Iterator[str]:
        return self.inner.list(prefix)
