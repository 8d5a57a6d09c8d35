"""Slots at something of which there are only a few, such as the connections of a pool.

Whoever waits for a connection inside the pool gives up after a while, and holds a thread meanwhile. Here threads wait
as long as it takes, and coroutines wait on their event loop; both stand in one line, first come, first served.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

from sqlalchemy.engine import Engine
from sqlalchemy.pool import QueuePool

LONG_WAIT_SECONDS = 3.0
"""How long somebody waits before it is said for whom."""


class Slots:
    """As many places as there are things to use at once.

    Args:
        most: how many places there are.
        on_long_wait: called once by each wait that is long already, where it waits.
    """

    def __init__(self, most: int, on_long_wait: Callable[[], None] = lambda: None) -> None:
        self._free = most
        self._on_long_wait = on_long_wait
        self._line: deque[Future[None]] = deque()
        self._lock = threading.Lock()

    def take(self) -> None:
        """Wait for a place."""
        place = self._ask()
        try:
            place.result(LONG_WAIT_SECONDS)
        except TimeoutError:
            self._on_long_wait()
            place.result()

    async def take_async(self) -> None:
        """Wait for a place on the event loop."""
        place = self._ask()
        late = asyncio.get_running_loop().call_later(LONG_WAIT_SECONDS, self._on_long_wait)
        try:
            await asyncio.wrap_future(place)
        except asyncio.CancelledError:
            if not place.cancel():  # it was granted at the same moment
                self.give_back()
            raise
        finally:
            late.cancel()

    def give_back(self) -> None:
        """Let the next in line have the place."""
        with self._lock:
            while self._line:
                place = self._line.popleft()
                if place.set_running_or_notify_cancel():
                    place.set_result(None)
                    return
            self._free += 1

    def _ask(self) -> Future[None]:
        place: Future[None] = Future()
        with self._lock:
            if self._free > 0:
                self._free -= 1
                place.set_result(None)
            else:
                self._line.append(place)
        return place


def slots_of(engine: Engine) -> Slots | None:
    """Return places for the transactions of an engine: one on SQLite, else its connections; None without a bound.

    A named pool has one line for all who open transactions there; elsewhere each caller gets places of its own.
    """
    if engine.dialect.name == "sqlite":
        return Slots(1)
    shared: Slots | None = getattr(engine.pool, "transactions", None)
    if shared is not None:
        return shared
    if not isinstance(engine.pool, QueuePool) or engine.pool.size() < 1 or engine.pool._max_overflow < 0:
        return None
    return Slots(engine.pool.size() + engine.pool._max_overflow)
