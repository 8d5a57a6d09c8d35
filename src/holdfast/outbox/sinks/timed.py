"""Blocking calls with a time for each as a whole: clients bound the parts of a call, and a drip of bytes has many.

A call runs on a thread of its own, so that whoever waits for it goes on in time, whatever the client is busy with: a
name to be looked up, a handshake, one header line after the other. A call that is late is cut off where it can be, and
left behind; only so many may be left behind at a time.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from functools import partial
from typing import Any, TypeVar

from ...core.errors import DeliveryError

MOST_LEFT_BEHIND = 8
_Result = TypeVar("_Result")


def _nothing() -> None:
    """Cut nothing off."""


class TimedCalls:
    """Makes calls, each within the same time.

    Args:
        seconds: how long a call may take.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._left_behind = 0
        self._lock = threading.Lock()

    def make(
        self, call: Callable[[], _Result], *, cut: Callable[[], None] = _nothing, late: Callable[[], None] = _nothing
    ) -> _Result:
        """Return what a call returns, or raise what it raises.

        Args:
            call: what to call.
            cut: is called when it is late, to have it end.
            late: is called on its thread when it has ended after all.

        Raises:
            TimeoutError: it has not ended in time.
            DeliveryError: too many calls before it have not ended yet.
        """
        if self._left_behind >= MOST_LEFT_BEHIND:
            raise DeliveryError(
                f"{MOST_LEFT_BEHIND} earlier requests have not ended, though each may take {self.seconds:g} s, so no "
                "other is begun. Look into what the receiver does with them."
            )
        ended: Future[_Result] = Future()
        step = partial(contextvars.copy_context().run, self._make, call, ended, late)
        threading.Thread(target=step, name="holdfast-sink", daemon=True).start()
        try:
            return ended.result(self.seconds)
        except TimeoutError:
            if ended.done() or not self._leave(ended):
                return ended.result()
        cut()
        raise TimeoutError(f"It has not ended within {self.seconds:g} s")

    def _leave(self, ended: Future[Any]) -> bool:
        """Leave a call behind; False when it has ended in the last moment."""
        with self._lock:
            is_left = ended.cancel()
            self._left_behind += is_left
        return is_left

    def _make(self, call: Callable[[], _Result], ended: Future[_Result], late: Callable[[], None]) -> None:
        try:
            set_end = partial(ended.set_result, call())
        except BaseException as error:
            set_end = partial(ended.set_exception, error)
        try:
            set_end()
        except InvalidStateError:  # nobody waits for it any more
            with self._lock:
                self._left_behind -= 1
            late()
