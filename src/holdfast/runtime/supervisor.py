"""Runs all parts of a process until it is asked to stop, then lets them finish within one drain time.

A part that dies although nobody stopped it takes the process with it: the rest drains, and whoever started it learns
why. A part that is merely wrong (a changed source, a missing table) does not die: it stops alone, see ``LeasedPart``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ..core.clock import Clock, SystemClock
from ..core.errors import WorkerDiedError
from ..database.error_text import public_error_text
from .event_loop import handlers_loop
from .idle_time import pulse
from .keeper import are_kept
from .listener import are_listening

_log = logging.getLogger("holdfast.worker")
_LOOK_AROUND_SECONDS = 0.2
_GIVE_UP_SECONDS = 10.0


class Part(Protocol):
    """Something that a process runs from its start to its end."""

    @property
    def title(self) -> str:
        """Return what people call it."""
        ...

    def run(self) -> bool:
        """Work until the process is to stop, then finish what was begun; return whether all of it was finished.

        Whatever it raises, and an end that nobody asked for, is the death of the part.
        """
        ...

    def stopping(self) -> None:
        """Learn that the process is to stop, in the middle of whatever ``run`` does."""
        ...

    def give_up(self) -> None:
        """Let go of what is held: the drain time is over, and ``run`` has not returned."""
        ...


@dataclass(eq=False)
class WorkerPart:
    """A part that looks at the stop event and at the drain time itself.

    Args:
        title: what people call it.
        work: runs it, and returns whether all of it was finished.
        dead: tells which parts of its own it has lost.
    """

    title: str
    work: Callable[[], bool]
    dead: Callable[[], Sequence[str]] = list
    _ended: threading.Event = field(default_factory=threading.Event)

    def run(self) -> bool:
        """Work until the end.

        Raises:
            WorkerDiedError: it ended because it had lost a part of its own.
        """
        try:
            has_finished = self.work()
        finally:
            self._ended.set()
        if dead := self.dead():
            raise WorkerDiedError(f"it has lost {' and '.join(dead)}", has_drained=has_finished)
        return has_finished

    def stopping(self) -> None:
        """Nothing to do: it looks at the event."""

    def give_up(self) -> None:
        """Wait for a moment: it lets go of what it holds at the end of its own drain."""
        self._ended.wait(_GIVE_UP_SECONDS)


def watch(
    parts: Mapping[str, Callable[[], bool]],
    stop: threading.Event,
    clock: Clock,
    look_around: Callable[[], None] = lambda: None,
) -> list[str]:
    """Wait until ``stop`` is set, or something has died that all else leans on, and would go on as if it had it.

    Signals are handled when it looks around, too.

    Args:
        parts: what is leant on, each with what returns whether it is alive.
        stop: once it is set, parts may end by themselves.
        clock: tells when to look again.
        look_around: what else to do five times a second.

    Returns:
        what has died.
    """
    while not clock.wait(stop, _LOOK_AROUND_SECONDS):
        look_around()
        dead = [title for title, is_alive in parts.items() if not is_alive()]
        if dead and not stop.is_set():
            return dead
    return []


def shared_parts() -> dict[str, Callable[[], bool]]:
    """Return what all parts of a process lean on, each with what returns whether it is alive."""
    loop = handlers_loop()
    return {
        "The keeper of leases": are_kept,
        "The pulse of open transactions": lambda: pulse.is_alive,
        "The event loop of async handlers": lambda: loop.is_alive,
        "The listener": are_listening,
    }


class Supervisor:
    """Runs parts side by side, each on a thread.

    Args:
        parts: what to run.
        stop: ends everything when it is set; it is set here when a part dies.
        drain_seconds: how long everything together may take to finish then.
    """

    def __init__(
        self, parts: Sequence[Part], stop: threading.Event, *, clock: Clock | None = None, drain_seconds: float = 30.0
    ) -> None:
        self._parts = parts
        self._stop = stop
        self._clock = clock or SystemClock()
        self._drain_seconds = drain_seconds
        self._finished: list[Part] = []
        self._deaths: list[str] = []

    def run(self) -> bool:
        """Run until ``stop`` is set, then drain; return whether everything that was begun finished in time.

        What outlives the drain time is given up, so that another worker can take over at once; what it still does can
        no longer be committed.

        Raises:
            WorkerDiedError: a part died; everything else was drained before.
        """
        threads = {part: self._started(part) for part in self._parts}
        for title in watch(shared_parts(), self._stop, self._clock):
            _log.error("%s died", title)
            self._died(title, "its thread has ended")
        _log.info("Stopping: nothing new is begun, and what runs may finish for %g s", self._drain_seconds)
        deadline = self._clock.monotonic() + self._drain_seconds
        for part in self._parts:
            part.stopping()
        left = [part for part, thread in threads.items() if self._is_alive_at(deadline, thread)]
        self._give_up(left)
        has_drained = len(self._finished) == len(self._parts)
        if self._deaths:
            raise WorkerDiedError(" ".join(self._deaths), has_drained=not left)
        return has_drained

    def _started(self, part: Part) -> threading.Thread | None:
        thread = threading.Thread(target=self._run_part, args=(part,), name=f"holdfast-{part.title}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the system has no more threads
            self._died(part.title, f"its thread could not be started: {error}")
            return None
        return thread

    def _run_part(self, part: Part) -> None:
        try:
            has_finished = part.run()
        except WorkerDiedError as error:
            self._died(part.title, str(error))
            return
        except BaseException as error:  # whatever it is, nobody would do this part's work any more
            _log.exception("%s died", part.title)
            self._died(part.title, public_error_text(error))
            return
        if not self._stop.is_set():
            self._died(part.title, "it ended although nobody stopped it")
        elif has_finished:
            self._finished.append(part)

    def _died(self, title: str, why: str) -> None:
        self._deaths.append(f"{title} died: {why}. Everything else was stopped; start the process again.")
        self._stop.set()

    def _is_alive_at(self, deadline: float, thread: threading.Thread | None) -> bool:
        if thread is None:
            return False
        thread.join(timeout=max(0.0, deadline - self._clock.monotonic()))
        return thread.is_alive()

    def _give_up(self, parts: Sequence[Part]) -> None:
        """Have parts let go of what they hold, side by side; what hangs is left to run out by itself."""
        threads = [threading.Thread(target=part.give_up, name="holdfast-give-up", daemon=True) for part in parts]
        for thread in threads:
            thread.start()
        deadline = self._clock.monotonic() + _GIVE_UP_SECONDS
        for thread in threads:
            thread.join(timeout=max(0.0, deadline - self._clock.monotonic()))
