"""Whether a client that is not made for several threads is used by one at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

WAIT_SECONDS = 0.1


class Turns:
    """Counts who is inside at once. With ``waits``, whoever is inside waits a moment for company to arrive."""

    def __init__(self) -> None:
        self.waits = False
        self.most_inside = 0
        self._inside = 0
        self._changed = threading.Condition()

    @contextmanager
    def inside(self) -> Iterator[None]:
        with self._changed:
            self._inside += 1
            self.most_inside = max(self.most_inside, self._inside)
            self._changed.notify_all()
            if self.waits:
                self._changed.wait_for(lambda: self._inside > 1, WAIT_SECONDS)
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1


def at_once(action: Callable[[], None]) -> None:
    """Do something on two threads at the same time."""
    threads = [threading.Thread(target=action) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
