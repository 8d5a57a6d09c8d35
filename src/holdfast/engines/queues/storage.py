"""Azure Storage Queue as an engine's queue.

A message that is put back uncounted is a copy with the same ids: the service counts every delivery and offers no way to
take one back. The copy says how often the message was delivered before. The original is marked first, so that both know
of each other if the process dies before it is deleted: they never run side by side, and the second finds the end of the
first.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ...core.errors import (
    Ambiguous,
    LostLeaseError,
    MessageError,
    Unavailable,
)
from ...core.extras import needed
from ...lease.stores._http import is_refused_before_work, leaves_doubt
from .protocol import MissingQueueError, QueueAccessError, Received
from .redelivery_marks import carried_count, first_inserted, marked_as_copied, put_back_copy

if TYPE_CHECKING:
    from azure.storage.queue import QueueClient, QueueMessage

MOST_BYTES = 64 * 1024
MOST_AT_ONCE = 32
_NEVER = -1
_COPYING_SECONDS = 30.0
_GONE = ("MessageNotFound", "PopReceiptMismatch")


class StorageQueue:
    """A queue of one engine in an Azure Storage account.

    Args:
        client: the queue, with whatever credential you use and without encode and decode policies.
        base64_encoded: how messages are written, as Azure Functions does by default; both forms are read.
        timeout_seconds: how long to wait for a connection, and for each part of an answer.
    """

    def __init__(self, client: QueueClient, *, base64_encoded: bool = True, timeout_seconds: float = 10.0) -> None:
        with needed("Azure Storage queues need the Azure SDK", "azure"):
            from azure.core import exceptions
        self._errors = exceptions
        self._client = client
        self._is_base64 = base64_encoded
        self._one_attempt: dict[str, Any] = {
            "retry_total": 0,
            "connection_timeout": timeout_seconds,
            "read_timeout": timeout_seconds,
        }

    @property
    def name(self) -> str:
        """Return the queue's name."""
        return self._client.queue_name

    def send(self, body: str, *, message_id: str, delay_seconds: float = 0.0) -> str:
        """Add a message; the service does not deduplicate, the engine's history does.

        Raises:
            MessageError: it is too large for a storage queue.
        """
        content = self._encoded(body, message_id)
        with self._translated("send", writes=True):
            sent = self._client.send_message(
                content, visibility_timeout=int(delay_seconds), time_to_live=_NEVER, **self._one_attempt
            )
        return str(sent.id)

    def _received(self, message: QueueMessage, visibility_seconds: float) -> Received:
        body = _decoded(str(message.content))
        inserted_at: datetime = message.inserted_on  # type: ignore[assignment]  # the service always tells it
        first = first_inserted(body) or inserted_at.astimezone(UTC)
        count = self._deliveries(message) + carried_count(body)
        return Received(str(message.id), body, count, first, message.pop_receipt, visibility_seconds)

    def _deliveries(self, message: QueueMessage) -> int:
        """Return how often this queue has delivered a message, this time included."""
        return int(message.dequeue_count or 1)

    def receive(self, most: int, visibility_seconds: float) -> Sequence[Received]:
        """Take messages; an answer that is lost leaves them invisible for so long, and they come again."""
        with self._translated("receive", writes=False):
            seconds = max(1, int(visibility_seconds))
            pages = self._client.receive_messages(
                messages_per_page=min(most, MOST_AT_ONCE), visibility_timeout=seconds, **self._one_attempt
            )
            return [self._received(message, seconds) for message in next(iter(pages.by_page()), ())]

    def check(self) -> None:
        """Look whether the queue is there and lets us read.

        Raises:
            MissingQueueError: it is not there.
            QueueAccessError: the credential may not read.
        """
        with self._translated("peek", writes=False):
            self._client.peek_messages(1, **self._one_attempt)

    def check_takes(self, body: str, *, message_id: str) -> None:
        """Look whether a message would be taken, without sending it.

        Raises:
            MessageError: it is too large for a storage queue.
            MissingQueueError: the queue is not there.
            QueueAccessError: the credential may not read.
        """
        self._encoded(body, message_id)
        self.check()

    def extend(self, message: Received, visibility_seconds: float) -> Received:
        """Keep a message invisible for so long.

        Raises:
            LostLeaseError: it is no longer ours.
        """
        return self._update(message, visibility_seconds)

    def delete(self, message: Received) -> bool:
        """Remove a message."""
        return self._if_ours(
            lambda: self._client.delete_message(message.id, message.receipt, **self._one_attempt), "delete"
        )

    def retry_later(self, message: Received, delay_seconds: float, error: str) -> bool:
        """Let a message come again; the service has counted it."""
        try:
            self._update(message, delay_seconds)
        except LostLeaseError:
            return False
        return True

    def put_back(self, message: Received, delay_seconds: float, reason: str) -> bool:
        """Mark the message, send a copy that carries the count, then delete the original.

        A message so large that a copy with its count has no room stays itself, and this time counts.
        """
        copy = put_back_copy(message)
        try:
            self._encoded(copy, message.id)
            marked = self._encoded(marked_as_copied(message.body), message.id)
        except MessageError:
            return self.retry_later(message, delay_seconds, reason)
        try:
            message = self._update(message, message.visibility_seconds or _COPYING_SECONDS, marked)
        except LostLeaseError:
            return False
        self.send(copy, message_id=message.id, delay_seconds=delay_seconds)
        return self.delete(message)

    def _encoded(self, body: str, message_id: str) -> str:
        content = base64.b64encode(body.encode()).decode() if self._is_base64 else body
        if len(content.encode()) > MOST_BYTES:
            raise MessageError(
                f"Message '{message_id}' has {len(content.encode()):,} bytes as it would be sent, and queue "
                f"'{self.name}' takes at most {MOST_BYTES:,}. Store large data elsewhere and send where it is."
            )
        return content

    def _update(self, message: Received, visibility_seconds: float, content: str | None = None) -> Received:
        def update() -> Received:
            answer = self._client.update_message(
                message.id, message.receipt, content, visibility_timeout=int(visibility_seconds), **self._one_attempt
            )
            return replace(message, receipt=answer.pop_receipt)

        found: list[Received] = []
        if not self._if_ours(lambda: found.append(update()), "update"):
            raise LostLeaseError(f"Message {message.id} of queue '{self.name}' is no longer this worker's.")
        return found[0]

    def _if_ours(self, call: Callable[[], object], doing: str) -> bool:
        try:
            with self._translated(doing, writes=True):
                call()
        except LostLeaseError:
            return False
        return True

    @contextmanager
    def _translated(self, doing: str, *, writes: bool) -> Iterator[None]:
        errors = self._errors
        try:
            yield
        except errors.HttpResponseError as error:
            code = getattr(error, "error_code", None)
            code = str(getattr(code, "value", code) or "")
            raise self._refusal(doing, code, error.status_code, writes=writes) from error
        except errors.AzureError as error:
            kind = Ambiguous if writes else Unavailable
            raise kind(f"Queue '{self.name}' did not answer a {doing}: {type(error).__name__}.") from error

    def _refusal(self, doing: str, code: str, status: int | None, *, writes: bool) -> Exception:
        if code in _GONE:
            return LostLeaseError(f"A message of queue '{self.name}' is no longer this worker's.")
        if code in ("QueueNotFound", "QueueBeingDeleted"):
            return MissingQueueError(
                f"There is no queue '{self.name}' in the account. Run 'holdfast migrate', or create it."
            )
        if status in (401, 403):
            return QueueAccessError(
                f"The credential may not {doing} messages of queue '{self.name}' ({status} {code}). Grant it 'Storage "
                "Queue Data Contributor'."
            )
        if writes and not is_refused_before_work(status, code) and (status is None or leaves_doubt(status)):
            return Ambiguous(f"Queue '{self.name}' failed at a {doing} that may have been done: {status} {code}.")
        return Unavailable(f"Queue '{self.name}' refused a {doing}: {status} {code}. It is tried again.")


class PoisonQueue(StorageQueue):
    """The queue a host moves messages to that failed too often for it; receiving them here is no attempt.

    Args:
        max_dequeue_count: the host's, as its host.json says: so often it has delivered each of them. Without it only
            the attempts that the history knows are counted.
    """

    def __init__(self, client: QueueClient, *, max_dequeue_count: int | None = None, **options: Any) -> None:
        super().__init__(client, **options)
        self._max_dequeue_count = max_dequeue_count or 0

    def _deliveries(self, message: QueueMessage) -> int:
        """Return how often the host has delivered a message, 0 when that is not known."""
        return self._max_dequeue_count


def _decoded(content: str) -> str:
    """Return the text of a message, written in base64 or not: JSON never looks like base64."""
    try:
        return base64.b64decode(content, validate=True).decode()
    except ValueError:
        return content
