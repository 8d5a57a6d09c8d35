"""Messages of an Azure Service Bus queue or topic.

Tested with the official client's own message and batch classes and a stand-in for its connection. It has not been run
against a real Service Bus here.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ...core.errors import ConfigurationError, DeliveryError
from ...core.extras import needed
from ..message import Message
from .batching import by_key, send_in_batches
from .cloud_events import AMQP_PREFIX, CONTENT_TYPE, as_json, attributes_of, checked_source
from .protocol import Taken, called

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusMessageBatch, ServiceBusSender


class ServiceBusSink:
    """Sends messages to a Service Bus queue or topic, as CloudEvents JSON, in batches of the client's own size.

    ``message_id`` is the message id, so a queue or topic with duplicate detection drops what comes again within its
    window. ``subject`` is the type, ``correlation_id`` the correlation id, and every CloudEvents attribute is an
    application property with the prefix ``cloudEvents_``, for subscription filters. If the process dies during a send,
    the messages come again.

    Args:
        sender: from ``ServiceBusClient.get_queue_sender`` or ``get_topic_sender``; sends take turns on it, because it
            is not made for several threads.
        source: who sends, a URI reference such as ``/shop``.
        sessions: send each message in the session of its key, which Service Bus delivers in order; a message without a
            key has a session of its own. The queue or subscription must require sessions.
        timeout_seconds: how long a batch may take, the client's retries included.

    Raises:
        ConfigurationError: the source is not a URI reference.
        MissingDependencyError: azure-servicebus is not installed.
    """

    def __init__(
        self, sender: ServiceBusSender, *, source: str, sessions: bool = False, timeout_seconds: float = 30.0
    ) -> None:
        with needed("ServiceBusSink needs azure-servicebus", "servicebus"):
            from azure.servicebus import ServiceBusMessage
            from azure.servicebus.exceptions import MessageSizeExceededError, ServiceBusError
        self._message_class = ServiceBusMessage
        self._full, self._errors = MessageSizeExceededError, ServiceBusError
        self._sender = sender
        self._client: ServiceBusClient | None = None
        self._place = f"'{sender.entity_name}' of {sender.fully_qualified_namespace}"
        self._source = checked_source(source)
        self._has_sessions = sessions
        self._timeout_seconds = timeout_seconds
        self._turn = threading.Lock()

    @classmethod
    def from_connection_string(
        cls,
        connection_string: str,
        *,
        source: str,
        queue: str | None = None,
        topic: str | None = None,
        **options: Any,
    ) -> ServiceBusSink:
        """Return a sink on a queue or a topic; ``options`` are those of the sink. Nothing connects yet.

        Raises:
            ConfigurationError: neither or both are named.
        """
        if (queue is None) == (topic is None):
            raise ConfigurationError("ServiceBusSink sends to one place: pass either queue= or topic=.")
        with needed("ServiceBusSink needs azure-servicebus", "servicebus"):
            from azure.servicebus import ServiceBusClient
        client = ServiceBusClient.from_connection_string(connection_string)
        sender = client.get_topic_sender(topic) if topic is not None else client.get_queue_sender(str(queue))
        sink = cls(sender, source=source, **options)
        sink._client = client
        return sink

    def __repr__(self) -> str:
        return f"ServiceBusSink({self._place!r})"

    def send(self, messages: Sequence[Message]) -> None:
        """Send messages in order, with sessions in order of each key, and stop at the first batch that is not taken.

        Raises:
            DeliveryError: Service Bus did not take a batch for sure, or a message is too large for it, or its id or key
                too long.
        """
        taken = Taken()
        with self._turn:
            for group in self._groups(messages):
                send_in_batches(
                    group,
                    taken,
                    new_batch=self._sender.create_message_batch,
                    add=self._add,
                    send=self._send_batch,
                    translated=self._translated,
                )

    def close(self) -> None:
        """Close the connection; the sink cannot be used after that."""
        with self._turn:
            self._sender.close()
            if self._client is not None:
                self._client.close()

    def _groups(self, messages: Sequence[Message]) -> list[list[Message]]:
        """Return what may share a batch: all, or with sessions those of one session."""
        return list(by_key(messages, _session).values()) if self._has_sessions else [list(messages)]

    def _add(self, batch: ServiceBusMessageBatch, message: Message) -> bool:
        sendable = self._sendable(message)
        try:
            batch.add_message(sendable)
        except self._full:
            return False
        return True

    def _send_batch(self, batch: ServiceBusMessageBatch) -> None:
        self._sender.send_messages(batch, timeout=self._timeout_seconds)

    @contextmanager
    def _translated(self, messages: Sequence[Message]) -> Iterator[None]:
        """Say what went wrong without the service's own words."""
        try:
            yield
        except self._errors as error:
            raise DeliveryError(
                f"Service Bus {self._place} did not take {called(messages)} for sure ({type(error).__name__}). What "
                "is not taken comes again with the same id; check that it can be reached and lets this identity send."
            ) from error

    def _sendable(self, message: Message) -> ServiceBusMessage:
        attributes = attributes_of(message, self._source)
        try:
            return self._message_class(
                as_json(message, self._source),
                message_id=message.message_id,
                session_id=_session(message) if self._has_sessions else None,
                subject=message.type,
                correlation_id=message.correlation_id,
                content_type=CONTENT_TYPE,
                application_properties={AMQP_PREFIX + name: value for name, value in attributes.items()},
            )
        except ValueError as error:
            raise DeliveryError(
                f"Service Bus {self._place} cannot take message '{message.message_id}': {error} Append it anew with a "
                "shorter id or key.",
                is_permanent=True,
            ) from error


def _session(message: Message) -> str:
    return message.key or message.message_id
