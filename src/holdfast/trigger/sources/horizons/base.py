"""The horizon protocol, and the barrier that several databases share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from sqlalchemy.engine import Connection

UNBOUNDED = object()

_Waiting = TypeVar("_Waiting")


@dataclass(frozen=True, slots=True)
class Reading:
    """What may be read now: rows strictly below ``bound`` (None: nothing yet; ``UNBOUNDED``: everything).

    ``waiting`` tells that a further bound will follow soon; ``held_back_by`` says in words what it waits for.
    """

    bound: object
    waiting: bool = False
    held_back_by: tuple[str, ...] = ()


class Horizon(Protocol):
    """Finds the bound below which nothing can appear any more."""

    @property
    def name(self) -> str:
        """Return the name under which users choose it."""
        ...

    def prepare(self, connection: Connection) -> None:
        """Check what soundness needs (grants, server role, settings); raise naming what is missing."""
        ...

    def advance(self, connection: Connection) -> Reading:
        """Return the newest sound bound. The connection is in autocommit mode."""
        ...


class Unbounded:
    """Everything visible may be read: chosen by the user, or sound because ids commit in order."""

    def __init__(self, name: str = "none") -> None:
        self.name = name

    def prepare(self, connection: Connection) -> None:
        """Nothing to check."""

    def advance(self, connection: Connection) -> Reading:
        """Return no bound."""
        return Reading(UNBOUNDED)


class Barrier(Generic[_Waiting]):
    """Sample a position, list who might still write below it, and let the position be read once they have all ended.

    The sample comes first: whoever starts after it writes above it. Nothing blocks; a poll that finds the listed
    writers still busy keeps the older bound and looks again next time.
    """

    def __init__(
        self,
        sample: Callable[[Connection], object],
        list_writers: Callable[[Connection], _Waiting],
        still_busy: Callable[[Connection, _Waiting], _Waiting],
        describe: Callable[[_Waiting], tuple[str, ...]],
    ) -> None:
        self._sample = sample
        self._list_writers = list_writers
        self._still_busy = still_busy
        self._describe = describe
        self._bound: object = None
        self._pending: tuple[object, _Waiting] | None = None

    def advance(self, connection: Connection) -> Reading:
        """Return the newest bound whose writers have all ended."""
        if self._pending is not None:
            position, waiting = self._pending
            self._settle(position, self._still_busy(connection, waiting))
        if self._pending is None:
            position = self._sample(connection)
            self._settle(position, self._list_writers(connection))
        held = () if self._pending is None else self._describe(self._pending[1])
        return Reading(self._bound, waiting=self._pending is not None, held_back_by=held)

    def _settle(self, position: object, waiting: _Waiting) -> None:
        if waiting:
            self._pending = (position, waiting)
        else:
            self._pending = None
            self._bound = position
