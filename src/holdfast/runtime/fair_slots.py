"""What keeps one caller of a server from taking everything: a share of the places, and a bound on what is open at once.

For servers on one event loop, over whichever protocol.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from ..database.connection_slots import Slots


class FairSlots:
    """Slots of which each caller has only some: whoever fills theirs, with others in line, keeps nobody else out.

    Args:
        most: how many places there are.
        each: how many of them one caller may have.
    """

    def __init__(self, most: int, each: int) -> None:
        self._all = Slots(most)
        self._each = each
        self._own: dict[str, Slots] = {}
        self._users: Counter[str] = Counter()

    @asynccontextmanager
    async def place(self, who: str) -> AsyncIterator[None]:
        """Have a place, as soon as there is one of the caller's and one of all."""
        own = self._own.setdefault(who, Slots(self._each))
        self._users[who] += 1
        try:
            async with _taken(own), _taken(self._all):
                yield
        finally:
            self._users[who] -= 1
            if not self._users[who]:
                del self._users[who], self._own[who]


class OpenAtOnce:
    """Counts what each caller has open.

    Args:
        each: how much that may be.
        refusal: makes the error for more.
    """

    def __init__(self, each: int, refusal: Callable[[int], Exception]) -> None:
        self._each = each
        self._refusal = refusal
        self._open: Counter[str] = Counter()

    @contextmanager
    def counted(self, who: str) -> Iterator[None]:
        """Count one more of a caller's while it is open.

        Raises:
            Exception: as many of the caller's as may be are open; the error is the one of ``refusal``.
        """
        if self._open[who] >= self._each:
            raise self._refusal(self._each)
        self._open[who] += 1
        try:
            yield
        finally:
            self._open[who] -= 1
            if not self._open[who]:
                del self._open[who]


@asynccontextmanager
async def _taken(places: Slots) -> AsyncIterator[None]:
    await places.take_async()
    try:
        yield
    finally:
        places.give_back()
