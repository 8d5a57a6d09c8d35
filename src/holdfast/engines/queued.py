"""A delivery from a queue outside of the database: it is kept invisible, and every step of its end is a write.

Whatever happens between two of them makes the message come again [ENGINE-1].
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from ..core.clock import Clock
from ..core.errors import PollerError, StateStoreError
from ..core.types import JsonValue
from ..records.dead_letters import DeadLetter
from ..runtime.keeper import keeping
from .invisible import KeptInvisible
from .messages import EngineMessage
from .ports import Ended
from .queues.protocol import EngineQueue, Received
from .table_records import TableRecords


class QueuedDelivery:
    """A message that a queue handed out.

    Args:
        queue: where it is.
        records: where its end is written down.
        reached: told every boundary between two steps; for tests that stop there.
    """

    message: EngineMessage | None = None
    transaction: None = None

    def __init__(
        self,
        queue: EngineQueue,
        received: Received,
        records: TableRecords,
        clock: Clock,
        reached: Callable[[str], None] = lambda boundary: None,
    ) -> None:
        self._queue = queue
        self._records = records
        self._clock = clock
        self._reached = reached
        self._kept = KeptInvisible(queue, received, received.visibility_seconds or 0.0, clock)
        self._is_held = False
        self._let_go: Callable[[], None] | None = None

    @property
    def received(self) -> Received:
        """Return the message with its newest receipt."""
        return self._kept.message

    @property
    def fencing_token(self) -> int:
        """Return how often the message was dequeued."""
        return self.received.dequeue_count

    @property
    def lost(self) -> threading.Event:
        """Return what is set once the message is, or may be, someone else's."""
        return self._kept.lost

    def when_lost(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback`` once the message is lost; return what takes that back."""
        return self._kept.when_lost(callback)

    def mark_lost(self) -> None:
        """Take the message for someone else's from now on."""
        self._kept.mark_lost()

    @contextmanager
    def held(self, seconds: float) -> Iterator[None]:
        """Keep the message invisible to others inside the block."""
        self._kept.ttl_seconds = self._kept.ttl_seconds or seconds
        with keeping(self._kept, self._clock):
            self._is_held = True
            yield

    def holds_also(self, let_go: Callable[[], None]) -> None:
        """Learn how to free what the execution holds besides."""
        self._let_go = let_go

    def give_back(self, reason: str) -> None:
        """Let a message at work come again at once, uncounted; what its execution still does is not recorded."""
        if not self._is_held or self.lost.is_set():
            return
        self.mark_lost()
        if self._let_go is not None:
            with suppress(StateStoreError, PollerError):  # what is held ends by itself
                self._let_go()
        self._queue.put_back(self.received, 0.0, reason)

    def beat(self, progress: JsonValue) -> None:
        """Extend the message now. A queue has no place for progress."""
        self._kept.extend()

    def has_succeeded(self, message: EngineMessage) -> bool:
        """Return whether the history knows a success."""
        return self._records.has_succeeded(message)

    def undo(self, error: Exception) -> Exception:
        """Return the error: there is no transaction."""
        return error

    # Its end

    def succeed(self, ended: Ended) -> None:
        """Add a success to the history, then delete its message.

        A message that is not ours any more was taken over while we wrote, and may have been buried: the success counts.
        """
        self.record(ended)
        self.forget(ended.message)

    def record(self, ended: Ended) -> None:
        """Add a success to the history."""
        self._kept.extend()  # still ours, and for long enough to write its end down
        self._records.record(ended)
        self._reached("recorded")

    def retry(self, ended: Ended, delay_seconds: float) -> None:
        """Add a failure to the history, then let the message come again."""
        self._kept.extend()
        self._records.record(ended)
        self._reached("failure recorded")
        self._queue.retry_later(self._last(), delay_seconds, ended.error or "")

    def bury(self, letter: DeadLetter, message: EngineMessage | None, ended: Ended | None = None) -> None:
        """Add a dead letter, then delete its message."""
        if ended is not None:
            self._records.record(ended)
        self._records.bury(letter)
        self._reached("buried")
        if message is not None and self._records.has_succeeded(message):  # a worker that was paused has just said so
            self._records.withdraw(message)
        self._queue.delete(self._last())

    def forget(self, recorded: EngineMessage | None = None) -> None:
        """Delete the message."""
        if not self._queue.delete(self._last()) and recorded is not None:
            self._records.withdraw(recorded)

    def put_back(self, delay_seconds: float, reason: str) -> None:
        """Let the message come again, uncounted."""
        self._queue.put_back(self._last(), delay_seconds, reason)

    def _last(self) -> Received:
        return self._kept.let_go() if self._is_held else self.received


class PoisonedDelivery(QueuedDelivery):
    """A message in the queue that a host moves it to when it has failed too often for that host."""

    def put_back(self, delay_seconds: float, reason: str) -> None:
        """Nothing to do: the message stays where it is."""
