"""What an engine needs of a queue.

A message that was received is invisible to others for a while: that is the lease. Whoever works on it extends it, and
deletes it only after its end is recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from ...core.errors import ConfigurationError

if TYPE_CHECKING:
    from ..azure import AzureStorage
    from .embedded import DatabaseQueues


class MissingQueueError(ConfigurationError):
    """There is no such queue."""


class QueueAccessError(ConfigurationError):
    """The queue refuses us: the credential may not do what was asked for."""


@dataclass(frozen=True, slots=True)
class Received:
    """A message as the queue handed it out. ``dequeue_count`` counts this time too; ``receipt`` is the queue's own.

    ``visibility_seconds`` is how long it is invisible without being extended; None when the queue does not tell.
    ``uncharged`` is how many of the deliveries were lost with a worker and are not the message's fault, where the queue
    can tell.
    """

    id: str
    body: str
    dequeue_count: int
    inserted_at: datetime
    receipt: Any
    visibility_seconds: float | None = None
    uncharged: int = 0

    @property
    def charged_count(self) -> int:
        """Return the count that is compared with the maximum."""
        return self.dequeue_count - self.uncharged


class SendingQueue(Protocol):
    """A queue of one engine, as those see it that send to it.

    Every method raises ``Unavailable`` when the queue surely did nothing and a retry can help, and ``Ambiguous`` when
    the answer was lost.
    """

    @property
    def name(self) -> str:
        """Return the queue's name, as dead letters tell it."""
        ...

    def send(self, body: str, *, message_id: str, delay_seconds: float = 0.0) -> str:
        """Add a message; return the queue's id of it. Where the queue can, the same message id again adds nothing."""
        ...


@runtime_checkable
class EngineQueue(SendingQueue, Protocol):
    """A queue of one engine outside of the database, as its worker sees it."""

    def receive(self, most: int, visibility_seconds: float) -> Sequence[Received]:
        """Take up to ``most`` messages, invisible to others for so long."""
        ...

    def extend(self, message: Received, visibility_seconds: float) -> Received:
        """Keep a message invisible for so long from now; return it with its new receipt.

        Raises:
            LostLeaseError: it is no longer ours.
        """
        ...

    def delete(self, message: Received) -> bool:
        """Remove a message; return whether it was still ours."""
        ...

    def retry_later(self, message: Received, delay_seconds: float, error: str) -> bool:
        """Let a message that failed come again after a while, counted; return whether it was still ours."""
        ...

    def put_back(self, message: Received, delay_seconds: float, reason: str) -> bool:
        """Let a message come again after a while with its count as it was; return whether it was still ours."""
        ...


@runtime_checkable
class LimitedQueue(Protocol):
    """A queue that may not be there, or not take every message, and that can be asked before."""

    def check_takes(self, body: str, *, message_id: str) -> None:
        """Look whether ``send`` would take a message, without sending it.

        Raises:
            MessageError: it is too large.
            MissingQueueError: there is no such queue.
            QueueAccessError: the queue refuses us.
        """
        ...


EngineQueues: TypeAlias = "AzureStorage | DatabaseQueues"
"""Where the queues of engines are."""
