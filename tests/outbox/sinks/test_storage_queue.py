"""The storage queue sink against Azurite."""

from __future__ import annotations

import base64
import json
import sys
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from azure.storage.queue import QueueClient

from holdfast.core.errors import ConfigurationError, DeliveryError, MissingDependencyError, OutboxError
from holdfast.outbox.message import Message
from holdfast.outbox.sinks import StorageQueueSink
from holdfast.outbox.sinks.cloud_events import as_json, cloud_event
from holdfast.outbox.sinks.storage_queue import MOST_BYTES
from tests.components.azurite import ACCOUNT, KEY, AzuriteServer
from tests.components.ports import HOST, free_port
from tests.outbox.sinks.messages import SOURCE, message, messages

pytestmark = pytest.mark.component("azurite")
NewSink = Callable[..., StorageQueueSink]


@pytest.fixture
def queue(azurite: AzuriteServer) -> Iterator[QueueClient]:
    """An empty queue."""
    name = f"q{uuid.uuid4().hex}"
    with QueueClient.from_connection_string(azurite.connection_string, name) as client:
        client.create_queue()
        yield client


@pytest.fixture
def new_sink(azurite: AzuriteServer) -> Iterator[NewSink]:
    made: list[StorageQueueSink] = []

    def make(queue: str, **options: Any) -> StorageQueueSink:
        made.append(StorageQueueSink.from_connection_string(azurite.connection_string, queue, source=SOURCE, **options))
        return made[-1]

    yield make
    for sink in made:
        sink.close()


def received(queue: QueueClient) -> list[str]:
    """Return the texts in the queue, oldest first, without taking them out."""
    return [str(each.content) for each in queue.peek_messages(max_messages=32)]


def of_size(size: int, **changes: Any) -> Message:
    """Return a message whose event has exactly ``size`` bytes."""
    empty = len(as_json(message(1, data="", **changes), SOURCE))
    return message(1, data="x" * (size - empty), **changes)


def test_messages_arrive_in_order_one_each_as_cloud_events(queue: QueueClient, new_sink: NewSink) -> None:
    new_sink(queue.queue_name).send(messages(10))
    assert [json.loads(text) for text in received(queue)] == [cloud_event(each, SOURCE) for each in messages(10)]


def test_what_is_delivered_again_has_the_same_text(queue: QueueClient, new_sink: NewSink) -> None:
    for _ in range(2):
        new_sink(queue.queue_name).send(messages(2))
    texts = received(queue)
    assert texts[:2] == texts[2:]


def test_azure_functions_can_have_base64(queue: QueueClient, new_sink: NewSink) -> None:
    new_sink(queue.queue_name, base64_encoded=True).send(messages(1))
    [text] = received(queue)
    assert json.loads(base64.b64decode(text, validate=True)) == cloud_event(message(1), SOURCE)


@pytest.mark.parametrize("encoded", [False, True])
def test_texts_that_xml_finds_hard_arrive_unchanged(queue: QueueClient, new_sink: NewSink, encoded: bool) -> None:
    hard = "<a>&amp;]]> \ufffe\uffff \x01\x7f\x85 \u2028 🎉 'quoted' \"too\" \r\n\t \\uffff"
    new_sink(queue.queue_name, base64_encoded=encoded).send([message(1, data=hard)])
    [text] = received(queue)
    assert json.loads(base64.b64decode(text) if encoded else text)["data"] == hard


def test_the_largest_message_is_taken_and_one_byte_more_is_refused(queue: QueueClient, new_sink: NewSink) -> None:
    sink = new_sink(queue.queue_name)
    sink.send([of_size(MOST_BYTES)])
    assert len(received(queue)) == 1
    with pytest.raises(DeliveryError, match=r"Message 'large' has 65,537 bytes .* at most 65,536"):
        sink.send([message(2), of_size(MOST_BYTES + 1, message_id="large"), message(3)])
    assert [json.loads(text)["id"] for text in received(queue)] == ["m1", "m2"]


def test_base64_counts_for_the_size(queue: QueueClient, new_sink: NewSink) -> None:
    sink = new_sink(queue.queue_name, base64_encoded=True)
    largest = MOST_BYTES // 4 * 3
    sink.send([of_size(largest)])
    with pytest.raises(DeliveryError, match="has 65,540 bytes"):
        sink.send([of_size(largest + 1)])
    assert len(received(queue)) == 1


def test_size_is_counted_in_bytes_and_not_in_characters(queue: QueueClient, new_sink: NewSink) -> None:
    with pytest.raises(DeliveryError, match="'m1'"):
        new_sink(queue.queue_name).send([message(1, data="ä" * (MOST_BYTES // 2))])
    assert received(queue) == []


def test_messages_do_not_run_out_by_themselves(queue: QueueClient, new_sink: NewSink) -> None:
    """Azure's own default would delete them after seven days."""
    new_sink(queue.queue_name).send(messages(1))
    new_sink(queue.queue_name, time_to_live_seconds=60).send(messages(1))
    for_ever, one_minute = queue.peek_messages(max_messages=2)
    assert for_ever.expires_on is not None
    assert for_ever.expires_on.year == 9999
    assert one_minute.expires_on is not None
    assert one_minute.inserted_on is not None
    assert (one_minute.expires_on - one_minute.inserted_on).total_seconds() == 60


def test_a_missing_queue_is_told(new_sink: NewSink) -> None:
    with pytest.raises(OutboxError, match=r"queue 'nowhere' of account .* there is none.*create_queue=True"):
        new_sink("nowhere").send(messages(1))


def test_a_missing_queue_is_made_when_asked(azurite: AzuriteServer, new_sink: NewSink) -> None:
    name = f"q{uuid.uuid4().hex}"
    new_sink(name, create_queue=True).send(messages(3))
    with QueueClient.from_connection_string(azurite.connection_string, name) as client:
        assert [json.loads(text)["id"] for text in received(client)] == ["m1", "m2", "m3"]


def test_a_refused_key_is_told_without_showing_it(azurite: AzuriteServer, queue: QueueClient) -> None:
    wrong = base64.b64encode(b"another key").decode()
    connection_string = azurite.connection_string.replace(KEY, wrong)
    sink = StorageQueueSink.from_connection_string(connection_string, queue.queue_name, source=SOURCE)
    with pytest.raises(OutboxError, match="Check the key") as caught:
        sink.send(messages(1))
    sink.close()
    assert wrong not in str(caught.value)
    assert received(queue) == []


def test_an_account_that_does_not_answer_raises_at_once() -> None:
    """The client's own retries would take a minute; trying again is the relay's work."""
    endpoint = f"http://{HOST}:{free_port()}/{ACCOUNT}"
    connection_string = f"AccountName={ACCOUNT};AccountKey={KEY};QueueEndpoint={endpoint};"
    sink = StorageQueueSink.from_connection_string(connection_string, "orders", source=SOURCE)
    with pytest.raises(OutboxError, match=r"Message 'm1' was not taken .* for sure \(ServiceRequestError\)") as caught:
        sink.send(messages(2))
    sink.close()
    assert "\n" not in str(caught.value)


def test_after_a_failure_nothing_behind_it_was_sent(queue: QueueClient, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []

    def fails_at_the_third(content: str, **options: Any) -> Any:
        if json.loads(content)["id"] == "m3":
            return real("x" * (MOST_BYTES + 1), **options)  # the service refuses that
        sent.append(content)
        return real(content, **options)

    real = queue.send_message
    monkeypatch.setattr(queue, "send_message", fails_at_the_third)
    with pytest.raises(OutboxError, match="Message 'm3'"):
        StorageQueueSink(queue, source=SOURCE).send(messages(5))
    assert received(queue) == sent
    assert len(sent) == 2


def test_a_source_is_checked_and_a_missing_package_is_named(
    queue: QueueClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigurationError, match="URI reference"):
        StorageQueueSink(queue, source="my shop")
    monkeypatch.setitem(sys.modules, "azure.storage.queue", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'holdfast\[azure\]'"):
        StorageQueueSink.from_connection_string("x", "orders", source=SOURCE)
