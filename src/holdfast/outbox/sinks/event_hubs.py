"""Events of an Azure Event Hub.

Tested with the official client's own event and batch classes and a stand-in for its connection. It has not been run
against a real Event Hub here.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from ...core.errors import ConfigurationError, DeliveryError
from ...core.extras import needed
from ..message import Message
from .batching import by_key, send_in_batches
from .cloud_events import AMQP_PREFIX, CONTENT_TYPE, as_json, attributes_of, checked_source
from .protocol import Taken, called

if TYPE_CHECKING:
    from azure.eventhub import EventData, EventDataBatch, EventHubProducerClient


class EventHubsSink:
    """Sends messages to an Event Hub, as CloudEvents JSON, in batches of the client's own size.

    The partition key is the message's key: events of one key are in one partition, in order. Events without a key go to
    any partition; give a ``partition_id`` to have all in one order. Event Hubs do not deduplicate: readers do, by the
    event's id, which is also its ``message_id``. If the process dies during a send, the messages come again.

    Args:
        producer: without ``buffered_mode`` and without ``on_error``: both would let a send return although the hub does
            not have the events. Sends take turns on it, because it is not made for several threads.
        source: who sends, a URI reference such as ``/shop``.
        partition_id: send everything to this partition.
        timeout_seconds: how long a batch may take.

    Raises:
        ConfigurationError: the source is not a URI reference, or the producer hides failures.
        MissingDependencyError: azure-eventhub is not installed.
    """

    def __init__(
        self,
        producer: EventHubProducerClient,
        *,
        source: str,
        partition_id: str | None = None,
        timeout_seconds: float = 30.0,
    ) -> None:
        with needed("EventHubsSink needs azure-eventhub", "eventhubs"):
            from azure.eventhub import EventData
            from azure.eventhub.exceptions import EventHubError
        self._event_class, self._errors = EventData, EventHubError
        self._producer = _checked_producer(producer)
        self._name = producer.eventhub_name
        self._source = checked_source(source)
        self._partition_id = partition_id
        self._timeout_seconds = timeout_seconds
        self._turn = threading.Lock()

    @classmethod
    def from_connection_string(
        cls, connection_string: str, event_hub: str, *, source: str, **options: Any
    ) -> EventHubsSink:
        """Return a sink on an event hub; ``options`` are those of the sink. Nothing connects yet."""
        with needed("EventHubsSink needs azure-eventhub", "eventhubs"):
            from azure.eventhub import EventHubProducerClient
        producer = EventHubProducerClient.from_connection_string(connection_string, eventhub_name=event_hub)
        return cls(producer, source=source, **options)

    def __repr__(self) -> str:
        return f"EventHubsSink({self._name!r})"

    def send(self, messages: Sequence[Message]) -> None:
        """Send messages, those of each key in order, and stop at the first batch that is not taken.

        Raises:
            DeliveryError: a message is too large, or the hub did not take a batch for sure.
        """
        taken = Taken()
        with self._turn:
            for key, group in self._groups(messages):
                self._send_group(key, group, taken)

    def close(self) -> None:
        """Close the connection; the sink cannot be used after that."""
        with self._turn:
            self._producer.close()

    def _groups(self, messages: Sequence[Message]) -> list[tuple[str | None, list[Message]]]:
        """Return what may share a batch: those of one key, or all when they go to one partition."""
        if self._partition_id is not None:
            return [(None, list(messages))]
        return list(by_key(messages, lambda message: message.key).items())

    def _send_group(self, key: str | None, group: Sequence[Message], taken: Taken) -> None:
        new_batch = partial(self._new_batch, key)
        send_in_batches(
            group, taken, new_batch=new_batch, add=self._add, send=self._send_batch, translated=self._translated
        )

    def _new_batch(self, key: str | None) -> EventDataBatch:
        return self._producer.create_batch(partition_id=self._partition_id, partition_key=key)

    def _add(self, batch: EventDataBatch, message: Message) -> bool:
        try:
            batch.add(self._event(message))
        except ValueError:  # how the client says that a batch is full
            return False
        return True

    def _send_batch(self, batch: EventDataBatch) -> None:
        self._producer.send_batch(batch, timeout=self._timeout_seconds)

    @contextmanager
    def _translated(self, messages: Sequence[Message]) -> Iterator[None]:
        """Say what went wrong without the hub's own words."""
        try:
            yield
        except self._errors as error:
            raise DeliveryError(
                f"The event hub '{self._name}' did not take {called(messages)} for sure ({type(error).__name__}). What "
                "is not taken comes again with the same id; check that it can be reached and lets this identity send."
            ) from error

    def _event(self, message: Message) -> EventData:
        event = self._event_class(as_json(message, self._source))
        event.message_id = message.message_id
        event.content_type = CONTENT_TYPE
        if message.correlation_id is not None:
            event.correlation_id = message.correlation_id
        attributes = attributes_of(message, self._source)
        event.properties = {AMQP_PREFIX + name: value for name, value in attributes.items()}
        return event


def _checked_producer(producer: EventHubProducerClient) -> EventHubProducerClient:
    """Refuse a producer whose ``send_batch`` returns although the hub does not have the events.

    Raises:
        ConfigurationError: it is buffered, or has an ``on_error`` that is called instead of raising.
    """
    for hidden, option in (("_buffered_mode", "buffered_mode"), ("_on_error", "on_error")):
        if getattr(producer, hidden, None):
            raise ConfigurationError(
                f"The EventHubProducerClient was made with {option}, so a failed send would pass for a good one and "
                "messages would be lost. Make one without it for EventHubsSink."
            )
    return producer
