"""The Event Hubs sink: the client's real events and batches, with a stand-in for the connection."""

from __future__ import annotations

import json
import sys
from typing import Any, cast

import pytest
from azure.eventhub import EventData, EventDataBatch, EventHubProducerClient
from azure.eventhub.exceptions import ConnectionLostError, EventDataSendError

from holdfast.core.errors import ConfigurationError, DeliveryError, MissingDependencyError, OutboxError
from holdfast.outbox.sinks import EventHubsSink
from holdfast.outbox.sinks.cloud_events import cloud_event
from tests.outbox.sinks.messages import SOURCE, message, messages
from tests.outbox.sinks.turns import Turns, at_once

CONNECTION_STRING = "Endpoint=sb://shop.servicebus.windows.net/;SharedAccessKeyName=app;SharedAccessKey=aHVudGVyMg=="


class Producer:
    """Takes batches as an EventHubProducerClient does: whole or not at all."""

    eventhub_name = "orders"

    def __init__(self, most_bytes: int = 1024 * 1024) -> None:
        self.most_bytes = most_bytes
        self.taken: list[EventDataBatch] = []
        self.fails_at: dict[int, Exception] = {}
        self.attempts = 0
        self.timeouts: set[float | None] = set()
        self.is_closed = False
        self.turns = Turns()

    def create_batch(self, *, partition_id: str | None = None, partition_key: str | None = None) -> EventDataBatch:
        return EventDataBatch(self.most_bytes, partition_id=partition_id, partition_key=partition_key)

    def send_batch(self, batch: EventDataBatch, *, timeout: float | None = None) -> None:
        with self.turns.inside():
            self.attempts += 1
            self.timeouts.add(timeout)
            if self.attempts in self.fails_at:
                raise self.fails_at[self.attempts]
            self.taken.append(batch)

    def close(self) -> None:
        self.is_closed = True

    @property
    def events(self) -> list[EventData]:
        return [event for batch in self.taken for event in events_of(batch)]

    @property
    def ids(self) -> list[list[str | None]]:
        return [[event.message_id for event in events_of(batch)] for batch in self.taken]


def events_of(batch: EventDataBatch) -> list[EventData]:
    return [event for event in batch._internal_events if isinstance(event, EventData)]


def sink_on(producer: Producer, **options: Any) -> EventHubsSink:
    return EventHubsSink(cast(EventHubProducerClient, producer), **{"source": SOURCE, **options})


def test_an_event_carries_its_id_correlation_and_content() -> None:
    producer = Producer()
    given = message(1, key="customer-1", headers={"tenant": "blue"})
    sink_on(producer, timeout_seconds=7).send([given])
    [event] = producer.events
    assert (event.message_id, event.correlation_id) == ("m1", "c1")
    assert event.content_type == "application/cloudevents+json"
    assert json.loads(event.body_as_str()) == cloud_event(given, SOURCE)
    expected = {f"cloudEvents_{name}": value for name, value in cloud_event(given, SOURCE).items() if name != "data"}
    assert event.properties == expected
    assert producer.taken[0]._partition_key == "customer-1"
    assert producer.timeouts == {7}


def test_events_of_one_key_are_in_one_batch_with_that_key_in_order() -> None:
    producer = Producer()
    keys = ["a", "b", "a", None, "b", "a", None]
    sink_on(producer).send([message(number, key=key) for number, key in enumerate(keys)])
    assert producer.ids == [["m0", "m2", "m5"], ["m1", "m4"], ["m3", "m6"]]
    assert [batch._partition_key for batch in producer.taken] == ["a", "b", None]
    assert [batch._partition_id for batch in producer.taken] == [None] * 3


def test_with_a_partition_everything_goes_there_in_one_order() -> None:
    producer = Producer()
    keys = ["a", "b", "a", None]
    sink_on(producer, partition_id="2").send([message(number, key=key) for number, key in enumerate(keys)])
    assert producer.ids == [["m0", "m1", "m2", "m3"]]
    assert [(batch._partition_id, batch._partition_key) for batch in producer.taken] == [("2", None)]


def test_a_full_batch_is_followed_by_another_with_the_same_key() -> None:
    producer = Producer(most_bytes=4096)
    sink_on(producer).send(messages(30, key="a"))
    assert len(producer.taken) > 2
    assert [each for batch in producer.ids for each in batch] == [f"m{number}" for number in range(1, 31)]
    assert {batch._partition_key for batch in producer.taken} == {"a"}
    assert all(batch.size_in_bytes <= 4096 for batch in producer.taken)


def test_a_message_larger_than_a_batch_raises() -> None:
    producer = Producer(most_bytes=4096)
    with pytest.raises(DeliveryError, match="Message 'm2' is larger"):
        sink_on(producer).send([message(1), message(2, data="x" * 5000), message(3)])
    assert producer.ids == [["m1"]]


def test_a_batch_that_fails_raises_and_nothing_behind_it_is_sent() -> None:
    producer = Producer(most_bytes=4096)
    producer.fails_at[2] = EventDataSendError("secret words of the service")
    with pytest.raises(
        OutboxError, match=r"event hub 'orders' .* from message 'm\d+' on .*\(EventDataSendError\)"
    ) as caught:
        sink_on(producer).send(messages(30))
    assert len(producer.taken) == 1
    assert "secret words" not in str(caught.value)


def test_what_is_delivered_again_has_the_same_ids_and_bodies() -> None:
    producer = Producer()
    producer.fails_at[1] = ConnectionLostError("gone")
    sink = sink_on(producer)
    with pytest.raises(OutboxError):
        sink.send(messages(3))
    sink.send(messages(3))
    sink.send(messages(3))
    first, second = (
        [(event.message_id, event.body_as_str()) for event in events_of(batch)] for batch in producer.taken
    )
    assert first == second


def test_several_partitions_of_a_relay_take_turns_on_one_producer() -> None:
    producer = Producer()
    producer.turns.waits = True
    sink = sink_on(producer)
    at_once(lambda: sink.send(messages(1)))
    assert producer.turns.most_inside == 1
    assert len(producer.events) == 2


def test_nothing_to_send_sends_nothing() -> None:
    producer = Producer()
    sink_on(producer).send([])
    sink_on(producer, partition_id="0").send([])
    assert producer.attempts == 0


@pytest.mark.parametrize("option", ["on_error", "buffered_mode"])
def test_a_real_producer_that_hides_failures_is_refused(option: str) -> None:
    """With these, the client's ``send_batch`` returns although the hub has nothing."""
    options: dict[str, Any] = {"on_error": lambda *_: None}
    if option == "buffered_mode":
        options |= {"buffered_mode": True, "on_success": lambda *_: None}
    producer = EventHubProducerClient.from_connection_string(CONNECTION_STRING, eventhub_name="orders", **options)
    with pytest.raises(ConfigurationError, match=option):
        EventHubsSink(producer, source=SOURCE)


def test_a_sink_is_made_from_a_connection_string_without_connecting() -> None:
    sink = EventHubsSink.from_connection_string(CONNECTION_STRING, "orders", source=SOURCE, partition_id="0")
    assert repr(sink) == "EventHubsSink('orders')"
    sink.close()


def test_closing_closes_the_producer() -> None:
    producer = Producer()
    sink_on(producer).close()
    assert producer.is_closed


def test_a_source_is_checked_and_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="URI reference"):
        sink_on(Producer(), source="my shop")
    monkeypatch.setitem(sys.modules, "azure.eventhub", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'holdfast\[eventhubs\]'"):
        sink_on(Producer())
