"""Notices an event loop that does not turn: somebody knocks, and nobody answers.

An ``async`` handler that blocks keeps every other one on its loop from going on. The worker then claims nothing for the
loop and leaves what has not begun to others.
"""

from __future__ import annotations

from collections.abc import Callable

from ..core.clock import Clock

STUCK_SECONDS = 0.5


class Knocking:
    """Asks a loop to answer, from another thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._asked_at: float | None = None

    def knock(self, post: Callable[[Callable[[], None]], object]) -> None:
        """Ask, unless an answer is still awaited. ``post`` hands a callback to the loop."""
        if self._asked_at is None:
            self._asked_at = self._clock.monotonic()
            post(self._answer)

    @property
    def is_unanswered(self) -> bool:
        """Return whether the loop has not answered for longer than a healthy one would take."""
        asked_at = self._asked_at
        return asked_at is not None and self._clock.monotonic() - asked_at > STUCK_SECONDS

    def _answer(self) -> None:
        self._asked_at = None
