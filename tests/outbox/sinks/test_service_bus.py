"""The Service Bus sink: the client's real messages, batches and senders, with a stand-in for the connection."""

from __future__ import annotations

import json
import sys
from typing import Any, cast

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch, ServiceBusSender
from azure.servicebus.exceptions import ServiceBusConnectionError, ServiceBusServerBusyError

from holdfast.core.errors import ConfigurationError, DeliveryError, MissingDependencyError, OutboxError
from holdfast.outbox.sinks import ServiceBusSink
from holdfast.outbox.sinks.cloud_events import cloud_event
from tests.outbox.sinks.messages import SOURCE, message, messages
from tests.outbox.sinks.turns import Turns, at_once

CONNECTION_STRING = "Endpoint=sb://shop.servicebus.windows.net/;SharedAccessKeyName=app;SharedAccessKey=aHVudGVyMg=="


class Sender:
    """Takes batches as a ServiceBusSender does: whole or not at all."""

    entity_name = "orders"
    fully_qualified_namespace = "shop.servicebus.windows.net"

    def __init__(self, most_bytes: int = 256 * 1024) -> None:
        self.most_bytes = most_bytes
        self.taken: list[list[ServiceBusMessage]] = []
        self.fails_at: dict[int, Exception] = {}
        self.attempts = 0
        self.timeouts: set[float | None] = set()
        self.is_closed = False
        self.turns = Turns()

    def create_message_batch(self) -> ServiceBusMessageBatch:
        return ServiceBusMessageBatch(max_size_in_bytes=self.most_bytes)

    def send_messages(self, batch: ServiceBusMessageBatch, *, timeout: float | None = None) -> None:
        with self.turns.inside():
            self.attempts += 1
            self.timeouts.add(timeout)
            if self.attempts in self.fails_at:
                raise self.fails_at[self.attempts]
            self.taken.append(list(batch._messages))

    def close(self) -> None:
        self.is_closed = True

    @property
    def messages(self) -> list[ServiceBusMessage]:
        return [each for batch in self.taken for each in batch]

    @property
    def ids(self) -> list[list[str | None]]:
        return [[each.message_id for each in batch] for batch in self.taken]


def sink_on(sender: Sender, **options: Any) -> ServiceBusSink:
    return ServiceBusSink(cast(ServiceBusSender, sender), **{"source": SOURCE, **options})


def body_of(sent: ServiceBusMessage) -> Any:
    return json.loads(b"".join(sent.raw_amqp_message.body))


def test_a_message_carries_its_id_type_correlation_and_event() -> None:
    sender = Sender()
    given = message(1, key="customer-1", headers={"tenant": "blue", "final": True, "level": 3})
    sink_on(sender).send([given])
    [sent] = sender.messages
    assert (sent.message_id, sent.subject, sent.correlation_id) == ("m1", "OrderPlaced", "c1")
    assert sent.content_type == "application/cloudevents+json"
    assert body_of(sent) == cloud_event(given, SOURCE)
    event = cloud_event(given, SOURCE)
    expected = {f"cloudEvents_{name}": value for name, value in event.items() if name != "data"}
    assert sent.application_properties == expected
    assert sent.session_id is None


def test_messages_are_sent_in_order_in_one_batch() -> None:
    sender = Sender()
    sink_on(sender, timeout_seconds=7).send(messages(50))
    assert sender.ids == [[f"m{number}" for number in range(1, 51)]]
    assert sender.timeouts == {7}


def test_a_full_batch_is_followed_by_another_and_nothing_is_lost_or_moved() -> None:
    sender = Sender(most_bytes=4096)
    sink_on(sender).send(messages(30))
    assert len(sender.taken) > 2
    assert [each for batch in sender.ids for each in batch] == [f"m{number}" for number in range(1, 31)]


def test_a_message_larger_than_a_batch_raises() -> None:
    sender = Sender(most_bytes=4096)
    with pytest.raises(DeliveryError, match="Message 'm2' is larger"):
        sink_on(sender).send([message(1), message(2, data="x" * 5000), message(3)])
    assert sender.ids == [["m1"]]


def test_with_sessions_the_key_is_the_session_and_no_batch_has_two() -> None:
    sender = Sender()
    keys = ["a", "b", "a", None, "b", "a", None]
    given = [message(number, key=key) for number, key in enumerate(keys)]
    sink_on(sender, sessions=True).send(given)
    assert sender.ids == [["m0", "m2", "m5"], ["m1", "m4"], ["m3"], ["m6"]]
    assert [{each.session_id for each in batch} for batch in sender.taken] == [{"a"}, {"b"}, {"m3"}, {"m6"}]


def test_a_batch_that_fails_raises_and_nothing_behind_it_is_sent() -> None:
    sender = Sender(most_bytes=4096)
    sender.fails_at[2] = ServiceBusServerBusyError(message="secret words of the service")
    with pytest.raises(
        OutboxError, match=r"'orders' of shop.* from message 'm\d+' on .*\(ServiceBusServerBusyError\)"
    ) as caught:
        sink_on(sender).send(messages(30))
    assert len(sender.taken) == 1
    assert "secret words" not in str(caught.value)


def test_what_is_delivered_again_has_the_same_ids_and_bodies() -> None:
    sender = Sender()
    sender.fails_at[1] = ServiceBusConnectionError(message="gone")
    sink = sink_on(sender)
    with pytest.raises(OutboxError):
        sink.send(messages(3))
    sink.send(messages(3))
    sink.send(messages(3))
    first, second = sender.taken
    assert [(each.message_id, body_of(each)) for each in first] == [(each.message_id, body_of(each)) for each in second]


@pytest.mark.parametrize(("changes", "sessions"), [({"message_id": "x" * 129}, False), ({"key": "k" * 129}, True)])
def test_an_id_or_key_that_service_bus_does_not_take_is_told(changes: dict[str, str], sessions: bool) -> None:
    sender = Sender()
    with pytest.raises(DeliveryError, match=r"cannot be longer than 128 characters.* shorter id or key"):
        sink_on(sender, sessions=sessions).send([message(1, **changes)])
    assert sender.taken == []


def test_several_partitions_of_a_relay_take_turns_on_one_sender() -> None:
    sender = Sender()
    sender.turns.waits = True
    sink = sink_on(sender)
    at_once(lambda: sink.send(messages(1)))
    assert sender.turns.most_inside == 1
    assert len(sender.messages) == 2


def test_nothing_to_send_sends_nothing() -> None:
    sender = Sender()
    sink_on(sender).send([])
    sink_on(sender, sessions=True).send([])
    assert sender.attempts == 0


@pytest.mark.parametrize("place", [{"queue": "orders"}, {"topic": "orders"}])
def test_a_sink_is_made_from_a_connection_string_without_connecting(place: dict[str, str]) -> None:
    sink = ServiceBusSink.from_connection_string(CONNECTION_STRING, source=SOURCE, **place)
    assert "'orders' of shop.servicebus.windows.net" in repr(sink)
    assert "aHVudGVyMg" not in repr(sink)
    sink.close()


@pytest.mark.parametrize("place", [{}, {"queue": "orders", "topic": "orders"}])
def test_a_sink_sends_to_one_place(place: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="either queue= or topic="):
        ServiceBusSink.from_connection_string(CONNECTION_STRING, source=SOURCE, **place)


def test_closing_closes_the_sender() -> None:
    sender = Sender()
    sink_on(sender).close()
    assert sender.is_closed


def test_a_source_is_checked_and_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="URI reference"):
        sink_on(Sender(), source="my shop")
    monkeypatch.setitem(sys.modules, "azure.servicebus", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'holdfast\[servicebus\]'"):
        sink_on(Sender())
