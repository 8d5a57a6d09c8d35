"""What a process does now and then beside its work, on one thread: enqueuing periodic jobs, pruning, counting."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..core.clock import Clock
from ..core.errors import DbError

_log = logging.getLogger("holdfast.worker")
_AFTER_ERROR_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Chore:
    """Something to be done now and then.

    Args:
        title: what it does, as in "deleting old messages".
        task: does it; a number of seconds it returns is when it is due again, 0 when there is more to do.
        seconds: when it is due again otherwise.
    """

    title: str
    task: Callable[[], object]
    seconds: float


class Housekeeping:
    """A part that does each chore when it is due. One that fails is logged and tried again, and holds up no other."""

    title = "Housekeeping"

    def __init__(self, chores: Sequence[Chore], stop: threading.Event, *, clock: Clock) -> None:
        self._stop = stop
        self._clock = clock
        self._due = {chore: clock.monotonic() for chore in chores}

    def run(self) -> bool:
        """Do what is due until the process is to stop. A chore that dies with the process is done by the next one."""
        while not self._stop.is_set():
            self._clock.wait(self._stop, min(self._due.values(), default=1.0) - self._clock.monotonic())
            self.do_what_is_due()
        return True

    def stopping(self) -> None:
        """Nothing to do: a chore at hand is finished, and no other begun."""

    def give_up(self) -> None:
        """Nothing to do: chores hold nothing."""

    def do_what_is_due(self) -> None:
        """Do each chore whose time has come, once."""
        for chore, due_at in list(self._due.items()):
            if due_at <= self._clock.monotonic() and not self._stop.is_set():
                self._due[chore] = self._clock.monotonic() + self._done(chore)

    def _done(self, chore: Chore) -> float:
        """Do a chore; return in how many seconds it is due again."""
        try:
            seconds = chore.task()
        except DbError as error:
            _log.warning("%s did not work and is tried again: %s", chore.title.capitalize(), error)
            return min(_AFTER_ERROR_SECONDS, chore.seconds)
        except Exception:
            _log.exception("%s broke and is tried again", chore.title.capitalize())
            return min(_AFTER_ERROR_SECONDS, chore.seconds)
        return float(seconds) if isinstance(seconds, int | float) and not isinstance(seconds, bool) else chore.seconds
