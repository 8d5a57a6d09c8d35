"""Messages of an Azure Storage queue: one for each message of the outbox."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ...core.clock import Clock, SystemClock
from ...core.errors import DeliveryError
from ...core.extras import needed
from ..message import Message
from .answers import asked_to_wait, is_permanent
from .cloud_events import as_json, checked_source
from .protocol import Taken
from .timed import TimedCalls

if TYPE_CHECKING:
    from azure.storage.queue import QueueClient

MOST_BYTES = 64 * 1024
_NEVER = -1
_NOT_IN_XML = {ord(character): f"\\u{ord(character):04x}" for character in "\ufffe\uffff"}
_MISSING = "QueueNotFound"
_NOT_FOUND = 404


class StorageQueueSink:
    """Puts messages into an Azure Storage queue, as CloudEvents JSON, one request each, in order.

    The event's ``id`` is the message id. A storage queue neither deduplicates nor promises its readers an order. Each
    message is one HTTP request without the client's own retries: trying again is the relay's work. If the process dies
    during a request, the message comes again.

    Args:
        queue_client: the queue, with whatever credential you use and without a ``message_encode_policy``.
        source: who sends, a URI reference such as ``/shop``.
        base64_encoded: encode messages, as Azure Functions expects unless its host.json says ``messageEncoding: none``.
        time_to_live_seconds: how long a message is kept that nobody takes; for ever when left out.
        create_queue: make the queue when it is missing, instead of raising.
        timeout_seconds: how long a message may take, from the connection to the whole answer.
        clock: where the time comes from, for a queue that says until when to wait.

    Raises:
        ConfigurationError: the source is not a URI reference.
        MissingDependencyError: azure-storage-queue is not installed.
    """

    def __init__(
        self,
        queue_client: QueueClient,
        *,
        source: str,
        base64_encoded: bool = False,
        time_to_live_seconds: int | None = None,
        create_queue: bool = False,
        timeout_seconds: float = 10.0,
        clock: Clock | None = None,
    ) -> None:
        with needed("StorageQueueSink needs azure-storage-queue", "azure"):
            from azure.core.exceptions import AzureError, ResourceExistsError
        self._errors, self._exists_already = AzureError, ResourceExistsError
        self._queue = queue_client
        self._place = f"queue '{queue_client.queue_name}' of account '{queue_client.account_name}'"
        self._source = checked_source(source)
        self._is_base64 = base64_encoded
        self._time_to_live = _NEVER if time_to_live_seconds is None else time_to_live_seconds
        self._creates_queue = create_queue
        self._calls = TimedCalls(timeout_seconds)
        self._clock = clock or SystemClock()
        self._one_attempt: dict[str, Any] = {
            "retry_total": 0,
            "connection_timeout": timeout_seconds,
            "read_timeout": timeout_seconds,
        }

    @classmethod
    def from_connection_string(
        cls, connection_string: str, queue: str, *, source: str, **options: Any
    ) -> StorageQueueSink:
        """Return a sink on ``queue``; ``options`` are those of the sink. Nothing connects yet."""
        with needed("StorageQueueSink needs azure-storage-queue", "azure"):
            from azure.storage.queue import QueueClient
        return cls(QueueClient.from_connection_string(connection_string, queue), source=source, **options)

    def __repr__(self) -> str:
        return f"StorageQueueSink({self._place!r})"

    def send(self, messages: Sequence[Message]) -> None:
        """Put messages into the queue in order, and stop at the first that is not taken.

        Raises:
            DeliveryError: the queue did not take a message, its answer was lost, or a message is larger than it takes.
        """
        taken = Taken()
        for message in messages:
            with taken.before([message]):
                self._put_translated(message)
            taken.add([message])

    def close(self) -> None:
        """Close the client's connections; the sink cannot be used after that."""
        self._queue.close()

    def _put_translated(self, message: Message) -> None:
        content = self._content(message)
        try:
            self._calls.make(lambda: self._put(content))
        except (self._errors, TimeoutError) as error:
            status = getattr(error, "status_code", None) or 0
            raise DeliveryError(
                self._refusal(error, message),
                is_permanent=is_permanent(status) and status != _NOT_FOUND,  # a queue can be made
                retry_after_seconds=asked_to_wait(status, _headers_of(error), self._clock.now()),
            ) from error

    def _content(self, message: Message) -> str:
        body = as_json(message, self._source)
        content = base64.b64encode(body).decode() if self._is_base64 else body.decode().translate(_NOT_IN_XML)
        size = len(content.encode())
        if size > MOST_BYTES:
            raise DeliveryError(
                f"Message '{message.message_id}' has {size:,} bytes as it would be sent, and the {self._place} takes "
                f"at most {MOST_BYTES:,}. It was not sent; store large data elsewhere and append where it is.",
                is_permanent=True,
            )
        return content

    def _put(self, content: str) -> None:
        try:
            self._send_one(content)
        except self._errors as error:
            if not self._creates_queue or _code_of(error) != _MISSING:
                raise
            self._create_queue()
            self._send_one(content)

    def _send_one(self, content: str) -> None:
        self._queue.send_message(content, time_to_live=self._time_to_live, **self._one_attempt)

    def _create_queue(self) -> None:
        with suppress(self._exists_already):  # another process was faster
            self._queue.create_queue(**self._one_attempt)

    def _refusal(self, error: Exception, message: Message) -> str:
        """Return what happened, without the service's own words: they may hold a signed address."""
        code = _code_of(error)
        sentence = f"Message '{message.message_id}' was not taken by the {self._place}"
        if code == _MISSING:
            return f"{sentence}: there is none. Create it, correct its name, or pass create_queue=True."
        status = getattr(error, "status_code", None)
        if status in (401, 403):
            return (
                f"{sentence} ({status} {code}). Check the key, or give this identity "
                "'Storage Queue Data Message Sender'."
            )
        reason = f"{status} {code}".rstrip() if status is not None else type(error).__name__
        return (
            f"{sentence} for sure ({reason}). It comes again with the same id; check that the account can be reached."
        )


def _headers_of(error: Exception) -> Mapping[str, str]:
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    return {str(name).lower(): str(value) for name, value in headers.items()}


def _code_of(error: Exception) -> str:
    """Return the service's own error code, empty when it gave none."""
    code = getattr(error, "error_code", None)
    return str(getattr(code, "value", code) or "")
