"""A delivery from a queue outside of the database: it is kept invisible, and every step of its end is a write.

Whatever happens between two of them makes the message come again [ENGINE-1].
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from ..core.clock import Clock
from ..core.errors import LostLeaseError, PollerError, StateStoreError, Unavailable
from ..core.renewed import Renewed
from ..core.types import JsonValue
from ..records.dead_letters import NewLetter
from ..runtime.keeper import keeping
from .messages import EngineMessage
from .ports import Ended, worker_lost_before
from .queues.protocol import EngineQueue, Received
from .store import TableRecords


class KeptInvisible(Renewed):
    """A received message that is kept invisible to others. Safe to use from several threads."""

    def __init__(self, queue: EngineQueue, message: Received, lease_seconds: float, clock: Clock) -> None:
        super().__init__(clock, lease_seconds)
        self._queue = queue
        self._message = message
        self._lane = threading.Lock()
        self._is_let_go = False

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


class QueuedDelivery:
    """A message that a queue handed out.

    Args:
        queue: where it is.
        records: where its end is written down.
        reached: called at every boundary between two steps; for tests that stop there.
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
        self._put_down: Callable[[], None] | None = None

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

    @property
    def ttl_seconds(self) -> float:
        """Return how long the message stays ours without being extended."""
        return self._kept.ttl_seconds

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

    def has_in_hand(self, put_down: Callable[[], None]) -> None:
        """Learn how to let other messages about the same go on."""
        self._put_down = put_down

    def give_back(self, reason: str) -> None:
        """Let a message at work come again at once, uncounted; what its execution still does is not recorded."""
        if not self._is_held or self.lost.is_set():
            return
        self.mark_lost()
        _free(self._let_go)
        _free(self._put_down)
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

    def comes_again_undone(self, reason: str) -> bool:
        """Return False: there is no transaction that a database could have undone."""
        del reason
        return False

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

    def bury(self, letter: NewLetter, message: EngineMessage | None, ended: Ended | None = None) -> None:
        """Add a dead letter, then delete its message."""
        if ended is not None:
            self._records.record(ended)
        self._records.bury(letter)
        self._reached("buried")
        if message is not None and self._records.has_succeeded(message):  # a worker that was paused has just said so
            self._records.withdraw(message)
        self._delete()

    def forget(self, recorded: EngineMessage | None = None) -> None:
        """Delete the message."""
        if not self._delete() and recorded is not None:
            self._records.withdraw(recorded)

    def _delete(self) -> bool:
        """Delete the message last: whoever dies before leaves the message, which clears up when it comes again."""
        _free(self._put_down)
        return self._queue.delete(self._last())

    def lost_at(self, count: int) -> str:
        """Return the error of a message of which no delivery before this one recorded one."""
        return worker_lost_before(count)

    def put_back(self, delay_seconds: float, reason: str) -> None:
        """Let the message come again, uncounted."""
        self._queue.put_back(self._last(), delay_seconds, reason)

    def _last(self) -> Received:
        return self._kept.let_go() if self._is_held else self.received


def _free(held: Callable[[], None] | None) -> None:
    if held is not None:
        with suppress(StateStoreError, PollerError):  # what is held ends by itself
            held()


class PoisonedDelivery(QueuedDelivery):
    """A message in the queue that a host moves it to when it has failed too often for that host."""

    def lost_at(self, count: int) -> str:
        """Return the error of a message of which no delivery recorded one."""
        return (
            f"the host moved the message to '{self._queue.name}', and none of its attempts has recorded an error: its "
            "worker was lost, or failed before the operation began"
        )

    def put_back(self, delay_seconds: float, reason: str) -> None:
        """Nothing to do: the message stays where it is."""
