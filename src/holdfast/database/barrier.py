"""A barrier: a position becomes readable once everyone who might still write below it has ended."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Generic, TypeVar

from sqlalchemy.engine import Connection

_Listing = TypeVar("_Listing")
_Waiting = TypeVar("_Waiting", bound="Collection[object]")


@dataclass(frozen=True, slots=True)
class Reading:
    """What may be read now: rows strictly below ``bound`` (None: nothing yet; ``UNBOUNDED``: everything).

    ``waiting`` means that a further bound will follow soon; ``held_back_by`` says in words what it waits for.
    """

    bound: object
    waiting: bool = False
    held_back_by: tuple[str, ...] = ()


class Barrier(Generic[_Listing, _Waiting]):
    """Sample a position, list who might still write below it, and let the position be read once they have all ended.

    The sample comes first: whoever starts after it writes above it. Nothing blocks; a poll that finds the listed
    writers still busy keeps the older bound and looks again next time. Writers that came later are not waited for, so
    a database that is never idle does not hold the bound back.

    Args:
        look: samples a position and then lists who is at work; None when that is not known at this moment.
        busy: picks those of a listing who might write below the position sampled before it.
        still_busy: picks those waited for who, going by a later listing, have not ended.
        describe: says in words who is waited for.
    """

    def __init__(
        self,
        look: Callable[[Connection], tuple[object, _Listing] | None],
        busy: Callable[[_Listing], _Waiting],
        still_busy: Callable[[_Waiting, _Listing], _Waiting],
        describe: Callable[[_Waiting], tuple[str, ...]],
    ) -> None:
        self._look = look
        self._busy = busy
        self._still_busy = still_busy
        self._describe = describe
        self._bound: object = None
        self._pending: tuple[object, _Waiting] | None = None

    def advance(self, connection: Connection) -> Reading:
        """Return the newest bound whose writers have all ended."""
        before = self._pending
        found = self._look(connection)
        if found is not None:
            self._learn(*found)
        is_waiting = found is None or self._pending is not None
        return Reading(self._bound, waiting=is_waiting, held_back_by=self._held_back_by(before))

    def has_passed(self, position: object) -> bool:
        """Return whether exactly that position may be read already, and no later one is waited for."""
        return self._pending is None and self._bound == position

    def _held_back_by(self, before: tuple[object, _Waiting] | None) -> tuple[str, ...]:
        """Return who is waited for; not those just found, unless nothing at all can be read because of them."""
        if self._pending is None:
            return ()
        position, waiting = self._pending
        is_new = before is None or before[0] is not position
        return () if is_new and self._bound is not None else self._describe(waiting)

    def _learn(self, position: object, listing: _Listing) -> None:
        """One listing serves twice: it tells who of the earlier ones has ended, and who is at work now."""
        if self._pending is not None:
            earlier, waiting = self._pending
            self._settle(earlier, self._still_busy(waiting, listing))
        if self._pending is None:
            self._settle(position, self._busy(listing))

    def _settle(self, position: object, waiting: _Waiting) -> None:
        if waiting:
            self._pending = (position, waiting)
        else:
            self._pending = None
            self._bound = position
