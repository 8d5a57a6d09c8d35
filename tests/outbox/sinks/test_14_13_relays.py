"""14.13: what one message meets is that message's matter: those before it are not sent again, those behind it go on."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import pytest
from azure.eventhub.exceptions import EventDataSendError
from azure.servicebus.exceptions import ServiceBusServerBusyError
from azure.storage.queue import QueueClient
from confluent_kafka import KafkaError, Producer

from holdfast.core.errors import LeaseConflictError
from holdfast.core.retry import RetryPolicy
from holdfast.outbox.message import Message
from holdfast.outbox.sinks import KafkaSink, Sink, StorageQueueSink, WebhookSink
from tests.components.azurite import AzuriteServer
from tests.components.processes import wait_until
from tests.outbox.shops import Shop
from tests.outbox.sinks import test_event_hubs as event_hubs
from tests.outbox.sinks import test_service_bus as service_bus
from tests.outbox.sinks.messages import SOURCE
from tests.outbox.sinks.receiver import Answer, Receiver, receiving
from tests.outbox.sinks.test_kafka import Scripted
from tests.outbox.test_instances import working

SOON = RetryPolicy(max_retries=4, base_delay_seconds=0.001, max_delay_seconds=0.001)
BAD = 7


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as running:
        yield running


@pytest.fixture
def webhook(receiver: Receiver) -> Iterator[WebhookSink]:
    sink = WebhookSink(receiver.url, source=SOURCE)
    yield sink
    sink.close()


def refusing(shop: Shop, receiver: Receiver, status: int, count: int = 10) -> list[str]:
    """Append messages, of which the receiver refuses one."""
    appended = shop.append(*range(count))
    receiver.answer = lambda request: Answer(status if appended[BAD] in request.body.decode() else 204)
    return appended


@pytest.mark.parametrize("on_error", ["dead_letter", "park"])
@pytest.mark.parametrize("status", [400, 404, 307])
def test_14_13_a_message_that_is_refused_is_sent_once_and_so_are_all_others(
    sqlite_shop: Shop, receiver: Receiver, webhook: WebhookSink, on_error: str, status: int
) -> None:
    """Before, those in front of it in the batch were sent with every try of it, and those behind it waited."""
    sqlite_shop.app.relay("orders", webhook, on_error=on_error)
    appended = refusing(sqlite_shop, receiver, status)
    sqlite_shop.run("orders")
    assert receiver.ids == appended
    [letter] = sqlite_shop.execute("SELECT item_id, dequeue_count FROM holdfast_dead_letters")
    assert (letter["item_id"], letter["dequeue_count"]) == (appended[BAD], 1)


def test_14_13_what_may_pass_is_tried_again_alone(sqlite_shop: Shop, receiver: Receiver, webhook: WebhookSink) -> None:
    sqlite_shop.app.relay("orders", webhook, on_error="dead_letter", retry_policy=SOON)
    appended = refusing(sqlite_shop, receiver, 500)
    sqlite_shop.run("orders")
    assert receiver.ids == [*appended[:BAD], *[appended[BAD]] * 5, *appended[BAD + 1 :]]


def test_14_13_to_stop_keeps_what_was_delivered_and_goes_on_from_what_failed(
    sqlite_shop: Shop, receiver: Receiver, webhook: WebhookSink
) -> None:
    sqlite_shop.app.relay("orders", webhook, retry_policy=SOON)
    appended = refusing(sqlite_shop, receiver, 400)
    with pytest.raises(LeaseConflictError, match=f"answered 400 to message '{appended[BAD]}'"):
        sqlite_shop.run("orders")
    assert receiver.ids == [*appended[:BAD], *[appended[BAD]] * 5]
    receiver.requests.clear()
    receiver.answer = lambda request: Answer()
    sqlite_shop.app.processors.operator.resume("orders", actor="anne")
    sqlite_shop.run("orders")
    assert receiver.ids == appended[BAD:]


def test_14_13_to_retry_waits_for_the_message_however_long_it_takes(
    sqlite_shop: Shop, receiver: Receiver, webhook: WebhookSink
) -> None:
    policy = RetryPolicy(max_retries=0, base_delay_seconds=0.001, max_delay_seconds=0.001)
    sqlite_shop.app.relay("orders", webhook, on_error="retry", retry_policy=policy)
    appended = sqlite_shop.append(*range(10))
    tries = 30
    receiver.answer = lambda request: Answer(400 if BAD < len(receiver.requests) <= BAD + tries else 204)
    sqlite_shop.run("orders")
    assert receiver.ids == [*appended[:BAD], *[appended[BAD]] * (tries + 1), *appended[BAD + 1 :]]
    assert sqlite_shop.execute("SELECT * FROM holdfast_dead_letters") == []


def test_14_13_of_a_request_with_many_messages_the_refused_one_is_found(sqlite_shop: Shop, receiver: Receiver) -> None:
    sink = WebhookSink(receiver.url, source=SOURCE, batch=True, max_batch_bytes=2000)
    sqlite_shop.app.relay("orders", sink, on_error="dead_letter")
    appended = refusing(sqlite_shop, receiver, 422, count=20)
    sqlite_shop.run("orders")
    answered = Counter(
        event["id"]
        for request in receiver.requests
        if appended[BAD] not in request.body.decode()
        for event in request.event
    )
    assert answered == Counter([*appended[:BAD], *appended[BAD + 1 :]])
    assert sum(appended[BAD] in request.body.decode() for request in receiver.requests) == 2
    [letter] = sqlite_shop.execute("SELECT item_id FROM holdfast_dead_letters")
    assert letter["item_id"] == appended[BAD]
    sink.close()


def test_14_13_retry_after_is_waited_for(sqlite_shop: Shop, receiver: Receiver, webhook: WebhookSink) -> None:
    sqlite_shop.app.relay("orders", webhook, retry_policy=SOON)
    sqlite_shop.append(1, 2)
    came: list[float] = []

    def answer(request: object) -> Answer:
        came.append(time.monotonic())
        return Answer(429, {"retry-after": "1"}) if len(came) == 2 else Answer()

    receiver.answer = answer
    sqlite_shop.run("orders")
    assert len(came) == 3
    assert came[2] - came[1] >= 1


def test_14_13_a_long_wait_ends_when_people_stop_the_relay(
    sqlite_shop: Shop, receiver: Receiver, webhook: WebhookSink
) -> None:
    sqlite_shop.app.relay("orders", webhook)
    sqlite_shop.append(1)
    receiver.answer = lambda request: Answer(503, {"retry-after": "3000"})
    operator = sqlite_shop.app.processors.operator
    with working(sqlite_shop):
        wait_until(lambda: "503" in str(sqlite_shop.place("orders").reason), "the relay to wait")
        operator.stop("orders", actor="anne")
        wait_until(lambda: operator.views("orders")[0].holder is None, "the relay to let go")
    assert len(receiver.requests) == 1


# Every sink: the second of three keys fails once


class Case:
    """A sink whose other side fails once, and what that has got for sure."""

    def __init__(self, sink: Sink, delivered: Callable[[], Sequence[str]]) -> None:
        self.sink = sink
        self.delivered = delivered


def event_hub_case() -> Case:
    producer = event_hubs.Producer()
    producer.fails_at[2] = EventDataSendError("busy")
    ids = lambda: [str(name) for batch in producer.ids for name in batch]  # noqa: E731
    return Case(event_hubs.sink_on(producer), ids)


def service_bus_case() -> Case:
    sender = service_bus.Sender()
    sender.fails_at[2] = ServiceBusServerBusyError(message="busy")
    ids = lambda: [str(name) for batch in sender.ids for name in batch]  # noqa: E731
    return Case(service_bus.sink_on(sender, sessions=True), ids)


class ConfirmsSome(Scripted):
    """Confirms all but the records of one key."""

    def produce(self, topic: str, *, value: bytes, on_delivery: Callable[[Any, Any], None], **options: Any) -> None:
        if options["key"] == "b":
            self.outcomes[json.loads(value)["id"]] = KafkaError(KafkaError.NOT_ENOUGH_REPLICAS)
        super().produce(topic, value=value, on_delivery=on_delivery, **options)

    @property
    def confirmed(self) -> list[str]:
        return [name for name in self.produced if name not in self.outcomes]


def kafka_case() -> Case:
    made: list[Scripted] = []
    coming = iter([ConfirmsSome({}), Scripted({})])

    def new_producer(configuration: object) -> Producer:
        made.append(next(coming))
        return cast(Producer, made[-1])

    def delivered() -> list[str]:
        broken, good = made
        assert isinstance(broken, ConfirmsSome)
        return [*broken.confirmed, *good.produced]

    return Case(KafkaSink("orders", {}, source=SOURCE, new_producer=new_producer), delivered)


CASES = {"event hubs": event_hub_case, "service bus": service_bus_case, "kafka": kafka_case}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("on_error", ["stop", "park"])
def test_14_13_every_sink_keeps_what_was_confirmed_before_the_failure(
    sqlite_shop: Shop, name: str, on_error: str
) -> None:
    case = CASES[name]()
    sqlite_shop.app.relay("orders", case.sink, on_error=on_error, retry_policy=SOON)
    keys = ["a", "b", "a", "c", "b", "a", "c"]
    appended = [sqlite_shop.append(number, key=key)[0] for number, key in enumerate(keys)]
    assert sqlite_shop.run("orders") == len(keys)
    delivered = list(case.delivered())
    assert sorted(delivered) == sorted(appended)
    for key in "abc":
        of_key = [appended[number] for number, each in enumerate(keys) if each == key]
        assert [name for name in delivered if name in of_key] == of_key
    assert sqlite_shop.execute("SELECT * FROM holdfast_dead_letters") == []


@pytest.mark.component("azurite")
def test_14_13_the_storage_queue_keeps_what_it_took_and_a_message_too_large_is_set_aside(
    sqlite_shop: Shop, azurite: AzuriteServer
) -> None:
    name = f"q{threading.get_native_id()}x{time.monotonic_ns()}"
    sink = StorageQueueSink.from_connection_string(azurite.connection_string, name, source=SOURCE, create_queue=True)
    sqlite_shop.app.relay("orders", sink, on_error="park")
    with sqlite_shop.app.database.begin() as connection:
        for number, size in ((1, 1), (2, 1), (3, 70_000), (4, 1), (5, 1)):
            data = {"text": "x" * size}
            key = "large" if number in (3, 5) else None
            sqlite_shop.app.outbox.append(connection, "Paid", data, message_id=f"m{number}", key=key)
    sqlite_shop.run("orders")
    with QueueClient.from_connection_string(azurite.connection_string, name) as client:
        assert [json.loads(str(each.content))["id"] for each in client.peek_messages(max_messages=32)] == [
            "m1",
            "m2",
            "m4",
        ]
    letters = sqlite_shop.execute("SELECT item_id, dequeue_count FROM holdfast_dead_letters ORDER BY item_id")
    assert [(letter["item_id"], letter["dequeue_count"]) for letter in letters] == [("m3", 1), ("m5", 0)]
    sink.close()


def test_14_13_a_sink_of_ones_own_that_says_nothing_gets_everything_again(sqlite_shop: Shop) -> None:
    sent: list[int] = []

    class Plain:
        def send(self, messages: Sequence[Message]) -> None:
            for message in messages:
                sent.append(message.data["amount"])
                if sent == [1, 2]:
                    raise ConnectionError("reset")

    sqlite_shop.app.relay("orders", Plain(), retry_policy=SOON)
    sqlite_shop.append(1, 2, 3)
    sqlite_shop.run("orders")
    assert sent == [1, 2, 1, 2, 3]
