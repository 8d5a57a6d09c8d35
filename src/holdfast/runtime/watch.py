"""Parts that are watched: a worker that has lost one of its threads must not go on as if it had them all.

A part that died says nothing itself, so someone else has to look. What to do about it is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable


class Parts:
    """The parts of a worker by name, each with what tells whether it is alive."""

    def __init__(self) -> None:
        self._parts: dict[str, Callable[[], bool]] = {}

    def add(self, name: str, is_alive: Callable[[], bool]) -> None:
        """Watch a part from now on: it has been started."""
        self._parts[name] = is_alive

    def dead(self) -> list[str]:
        """Return the names of the parts that have died."""
        return [name for name, is_alive in self._parts.items() if not is_alive()]
