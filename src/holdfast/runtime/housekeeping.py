"""What a process does now and then beside its work: enqueuing periodic jobs, counting, pruning.

What may take long, such as deleting a year's worth of rows, is on a thread of its own, so that what has a time to keep
is not held up by it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from ..core.clock import Clock
from ..core.errors import DbError
from ..core.patience import unhurried

_log = logging.getLogger("holdfast.worker")
_AFTER_ERROR_SECONDS = 5.0
_REST_SECONDS = 60.0  # without any chore
_PRUNE_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Chore:
    """Something to be done now and then.

    Args:
        title: what it does, as in "deleting old messages".
        task: does it; a number of seconds it returns is when it is due again, 0 when there is more to do.
        seconds: when it is due again otherwise.
        may_take_long: whether others must not wait for it.
    """

    title: str
    task: Callable[[], object]
    seconds: float
    may_take_long: bool = False


def pruning(title: str, prune_some: Callable[[], int], most: int) -> Chore:
    """Return the chore of deleting what is due, at most so much at once: hourly, and again while there is more."""
    return Chore(title, lambda: 0.0 if prune_some() >= most else None, _PRUNE_SECONDS, may_take_long=True)


class Housekeeping:
    """A part that does each chore when it is due. One that fails is logged and tried again, and holds up no other."""

    title = "Housekeeping"

    def __init__(self, chores: Sequence[Chore], stop: threading.Event, *, clock: Clock) -> None:
        self._stop = stop
        self._clock = clock
        self._chores = chores

    def run(self) -> bool:
        """Do what is due until the process is to stop. A chore that dies with the process is done by the next one."""
        long = [chore for chore in self._chores if chore.may_take_long]
        prompt = [chore for chore in self._chores if not chore.may_take_long]
        beside = threading.Thread(target=self._rounds, args=(long,), name="holdfast-pruning", daemon=True)
        if long and prompt:
            beside.start()
        self._rounds(prompt or long)
        if beside.ident is not None:
            beside.join()
        return True

    def _rounds(self, chores: Sequence[Chore]) -> None:
        due = {chore: self._clock.monotonic() for chore in chores}
        while not self._stop.is_set():
            now = self._clock.monotonic()
            self._clock.wait(self._stop, min(due.values(), default=now + _REST_SECONDS) - now)
            self._do_what_is_due(due)

    def stopping(self) -> None:
        """Nothing to do: a chore at hand is finished, and no other begun."""

    def give_up(self) -> None:
        """Nothing to do: chores hold nothing."""

    def _do_what_is_due(self, due: dict[Chore, float]) -> None:
        """Do each chore whose time has come, once."""
        for chore, due_at in list(due.items()):
            if due_at <= self._clock.monotonic() and not self._stop.is_set():
                due[chore] = self._clock.monotonic() + self._done(chore)

    def _done(self, chore: Chore) -> float:
        """Do a chore; return in how many seconds it is due again."""
        try:
            with unhurried() if chore.may_take_long else nullcontext():
                seconds = chore.task()
        except DbError as error:
            _log.warning("%s did not work and is tried again: %s", chore.title.capitalize(), error)
            return min(_AFTER_ERROR_SECONDS, chore.seconds)
        except Exception:
            _log.exception("%s broke and is tried again", chore.title.capitalize())
            return min(_AFTER_ERROR_SECONDS, chore.seconds)
        return float(seconds) if isinstance(seconds, int | float) and not isinstance(seconds, bool) else chore.seconds
