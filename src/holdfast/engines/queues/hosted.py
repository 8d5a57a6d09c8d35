"""A message that a host holds: Azure Functions receives, extends and deletes, and calls a function in between.

The host deletes the message when the function returns, and lets it come again, counted, when it raises. So deleting is
returning, and retrying is raising. A message that was dequeued ``maxDequeueCount`` times goes to ``<queue>-poison``.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from ...core.errors import HandlerError
from .protocol import Received, SendingQueue
from .redelivery_marks import carried_count, first_inserted, put_back_copy


class HostedQueue:
    """The queue of an engine inside a host.

    Args:
        queue: the same queue, to send to.
    """

    def __init__(self, queue: SendingQueue) -> None:
        self._queue = queue

    @property
    def name(self) -> str:
        """Return the queue's name."""
        return self._queue.name

    def send(self, body: str, *, message_id: str, delay_seconds: float = 0.0) -> str:
        """Add a message."""
        return self._queue.send(body, message_id=message_id, delay_seconds=delay_seconds)

    def receive(self, most: int, visibility_seconds: float) -> Sequence[Received]:
        """Receive nothing: the host does."""
        return []

    def extend(self, message: Received, visibility_seconds: float) -> Received:
        """Nothing to do: the host extends the message while the function runs."""
        return message

    def delete(self, message: Received) -> bool:
        """Nothing to do: the host deletes the message when the function returns."""
        return True

    def retry_later(self, message: Received, delay_seconds: float, error: str) -> bool:
        """Make the host let the message come again, after host.json's ``visibilityTimeout``.

        Raises:
            HandlerError: always; let it through.
        """
        raise HandlerError(f"Message {message.id} of queue '{self.name}' failed and comes again: {error}")

    def put_back(self, message: Received, delay_seconds: float, reason: str) -> bool:
        """Send a copy that carries the count; the host deletes the original."""
        self._queue.send(put_back_copy(message), message_id=message.id, delay_seconds=delay_seconds)
        return True


def hosted_message(message: Any, now: datetime) -> Received:
    """Return what a queue-triggered function was called with (an ``azure.functions.QueueMessage``)."""
    body = message.get_body().decode(errors="replace")
    inserted_at: datetime = message.insertion_time or now
    inserted_at = inserted_at.replace(tzinfo=UTC) if inserted_at.tzinfo is None else inserted_at.astimezone(UTC)
    count = int(message.dequeue_count or 1) + carried_count(body)
    return Received(str(message.id), body, count, first_inserted(body) or inserted_at, message.pop_receipt)
