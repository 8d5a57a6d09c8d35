"""Housekeeping rests between its chores, and when there are none."""

from __future__ import annotations

import threading

import pytest

from holdfast.core.clock import SystemClock
from holdfast.runtime.housekeeping import Chore, Housekeeping


class Rests(SystemClock):
    """Notes how long somebody wants to rest, and stops them after a few."""

    def __init__(self, stop: threading.Event) -> None:
        self.seconds: list[float] = []
        self._stop = stop

    def wait(self, event: threading.Event, seconds: float | None) -> bool:
        assert seconds is not None
        self.seconds.append(seconds)
        if len(self.seconds) == 5:
            self._stop.set()
        return event.is_set()


@pytest.mark.parametrize("chores", [[], [Chore("counting", lambda: None, 60.0)]])
def test_it_rests_when_nothing_is_due(chores: list[Chore]) -> None:
    stop = threading.Event()
    clock = Rests(stop)
    assert Housekeeping(chores, stop, clock=clock).run()
    assert all(rest > 1 for rest in clock.seconds[1:]), clock.seconds
