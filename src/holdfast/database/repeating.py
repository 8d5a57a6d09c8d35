"""Doing again at once what another transaction, or a connection that broke, kept from being done."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from ..core.clock import Clock, SystemClock, jittered
from ..core.retry import doubling
from .errors import may_be_tried_again

_TRIES = 20
_PATIENCE_SECONDS = 5.0
_FIRST_PAUSE_SECONDS = 0.01
_LONGEST_PAUSE_SECONDS = 0.25
_Result = TypeVar("_Result")


def repeated(
    act: Callable[[], _Result],
    *,
    tries: int = _TRIES,
    patience_seconds: float = _PATIENCE_SECONDS,
    clock: Clock | None = None,
    is_passing: Callable[[Exception], bool] = may_be_tried_again,
) -> _Result:
    """Return what ``act`` returns, done again after a short pause while ``is_passing`` says so of its error.

    Each time it must be a whole transaction of its own. A database that has itself waited for a lock for longer than
    ``patience_seconds`` is not asked again.
    """
    clock = clock or SystemClock()
    give_up_at = clock.monotonic() + patience_seconds
    for failed in range(tries - 1):
        try:
            return act()
        except Exception as error:
            if clock.monotonic() >= give_up_at or not is_passing(error):
                raise
        pause = doubling(_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS, failed)
        clock.wait(threading.Event(), jittered(pause))
    return act()
