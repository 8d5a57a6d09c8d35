"""The lease of a message: what the keeper extends beside the operation that works on it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ..core.clock import Clock
from ..core.errors import LostLeaseError, Unavailable
from .queues.protocol import EngineQueue, Received


class KeptInvisible:
    """A received message that is kept invisible to others. Safe to use from several threads.

    ``lost`` is set once the message is known to be someone else's, or its time has passed without an extension that
    was answered.
    """

    is_protected = False

    def __init__(self, queue: EngineQueue, message: Received, visibility_seconds: float, clock: Clock) -> None:
        self._queue = queue
        self._message = message
        self._clock = clock
        self._renewed_at = clock.monotonic()
        self._lane = threading.Lock()
        self._is_let_go = False
        self._on_lost: list[Callable[[], None]] = []
        self.ttl_seconds = visibility_seconds
        self.lost = threading.Event()

    @property
    def message(self) -> Received:
        """Return the message with its newest receipt."""
        return self._message

    def let_go(self) -> Received:
        """Extend the message no more, and return it with its last receipt: a newer one would refuse that.

        Raises:
            LostLeaseError: an extension is not answered, and the message's time has passed meanwhile.
        """
        self._is_let_go = True
        if not self._lane.acquire(timeout=max(0.0, self.seconds_left())):
            self.mark_lost()
            raise LostLeaseError(f"Message {self._message.id} is no longer surely this worker's.")
        self._lane.release()
        return self._message

    def when_lost(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback`` once the message is lost (at once when it already is); return what takes that back."""
        self._on_lost.append(callback)
        if self.lost.is_set():
            callback()
        return lambda: self._on_lost.remove(callback)

    def extend(self) -> None:
        """Extend the message now.

        Raises:
            LostLeaseError: it is no longer ours.
        """
        try:
            self.heartbeat(wait_seconds=max(0.0, self.seconds_left()))
        except Unavailable as error:
            if self.seconds_left() > 0:
                raise
            self.mark_lost()
            raise LostLeaseError(f"Message {self._message.id} is no longer surely this worker's.") from error

    # What the keeper needs

    def seconds_since_renewal(self) -> float:
        """Return how long ago the last extension was asked for."""
        return self._clock.monotonic() - self._renewed_at

    def seconds_left(self) -> float:
        """Return how long the message is surely invisible to others."""
        return self.ttl_seconds - self.seconds_since_renewal()

    def mark_lost(self) -> None:
        """Take the message for someone else's from now on: nothing is extended or recorded any more."""
        if not self.lost.is_set():
            self.lost.set()
            for callback in list(self._on_lost):
                callback()

    def heartbeat(self, *, wait_seconds: float) -> None:
        """Extend the message, unless it was let go.

        Raises:
            LostLeaseError: it is no longer ours.
            Unavailable: an earlier extension is not answered yet.
        """
        if not self._lane.acquire(timeout=wait_seconds):
            raise Unavailable(f"An extension of message {self._message.id} has not been answered yet.")
        try:
            if self.lost.is_set():
                raise LostLeaseError(f"Message {self._message.id} is no longer this worker's.")
            if not self._is_let_go:
                self._extend()
        finally:
            self._lane.release()

    def _extend(self) -> None:
        asked_at = self._clock.monotonic()
        try:
            self._message = self._queue.extend(self._message, self.ttl_seconds)
        except LostLeaseError:
            self.mark_lost()
            raise
        self._renewed_at = asked_at
