"""Keeps a message invisible beside the operation that works on it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from types import TracebackType

from ..core.clock import Clock
from ..core.errors import LostLeaseError
from .queues.protocol import EngineQueue, Received

_log = logging.getLogger("holdfast.engines")
_JOIN_SECONDS = 5.0


class KeptInvisible:
    """A context manager: while it is open, a thread extends the message at every third of its time.

    ``lost`` is set once the message is known to be someone else's, or its time has passed without an extension.
    """

    def __init__(self, queue: EngineQueue, message: Received, visibility_seconds: float, clock: Clock) -> None:
        self._queue = queue
        self._message = message
        self._seconds = visibility_seconds
        self._clock = clock
        self._renewed_at = clock.monotonic()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._on_lost: list[Callable[[], None]] = []
        self.lost = threading.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-invisible", daemon=True)

    def __enter__(self) -> KeptInvisible:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(timeout=_JOIN_SECONDS)

    @property
    def message(self) -> Received:
        """Return the message with its newest receipt."""
        with self._lock:
            return self._message

    def let_go(self) -> Received:
        """Extend the message no more, and return it with its last receipt: a newer one would refuse that."""
        self._stop.set()
        return self.message

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
        self._extend()

    def _extend(self, *, unless_stopped: bool = False) -> None:
        asked_at = self._clock.monotonic()
        try:
            with self._lock:
                if unless_stopped and self._stop.is_set():
                    return
                if self.lost.is_set():
                    raise LostLeaseError(f"Message {self._message.id} is no longer this worker's.")
                self._message = self._queue.extend(self._message, self._seconds)
                self._renewed_at = asked_at
        except LostLeaseError:
            self.lose()
            raise

    def _run(self) -> None:
        while not self._clock.wait(self._stop, self._seconds / 3):
            try:
                self._extend(unless_stopped=True)
            except LostLeaseError:
                return
            except Exception as error:  # whatever it is, a heartbeat that ends would lose the message
                _log.warning("Message %s could not be extended and is tried again: %s", self._message.id, error)
            if self._clock.monotonic() - self._renewed_at >= self._seconds:
                self.lose()
                return

    def lose(self) -> None:
        """Take the message for someone else's from now on: nothing is extended or recorded any more."""
        if not self.lost.is_set():
            self.lost.set()
            for callback in list(self._on_lost):
                callback()
