"""Every queue keeps the same promises: a received message is invisible, counted, fenced, and comes again."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from holdfast.core.errors import Ambiguous, ConfigurationError, LostLeaseError, MessageError, Unavailable
from holdfast.engines.queues.protocol import MissingQueueError, Received
from holdfast.engines.queues.storage import StorageQueue
from tests.components.azurite import AzuriteServer
from tests.components.processes import wait_until
from tests.engines.driving import TestQueue
from tests.engines.queues import LateAnswers, embedded_queue, free_what_the_dead_held, let_time_pass, storage_queue

BODY = json.dumps({"messageId": "m-1", "payload": {"text": "Grüße ☃", "n": [1, None]}})
KINDS = [
    pytest.param("postgres_url", marks=pytest.mark.component("postgres18")),
    pytest.param("mariadb_url", marks=pytest.mark.component("mariadb")),
    "sqlite_url",
    pytest.param("azurite", marks=pytest.mark.component("azurite")),
]


@pytest.fixture(params=KINDS)
def queue(request: pytest.FixtureRequest) -> Iterator[TestQueue]:
    """The embedded queue on every database, and Azure's."""
    given = request.getfixturevalue(request.param)
    opened = storage_queue(given) if isinstance(given, AzuriteServer) else embedded_queue(given, 1.0)
    with opened as made:
        yield made


def received(queue: TestQueue, visibility_seconds: float = 30.0) -> Received:
    def look() -> Received | None:
        let_time_pass(queue, 1.1)
        free_what_the_dead_held(queue)
        found = queue.receive(1, visibility_seconds)
        return found[0] if found else None

    message = wait_until(look, "a message")
    assert message is not None
    return message


def is_empty(queue: TestQueue) -> bool:
    return not queue.receive(10, 30)


def test_a_message_comes_as_it_was_sent_and_counts_one(queue: TestQueue) -> None:
    queue.send(BODY, message_id="m-1")
    message = received(queue)
    assert (json.loads(message.body), message.dequeue_count) == (json.loads(BODY), 1)
    assert message.inserted_at.tzinfo is not None


def test_a_received_message_is_invisible_and_gone_when_deleted(queue: TestQueue) -> None:
    queue.send(BODY, message_id="m-1")
    message = received(queue)
    assert is_empty(queue)
    assert queue.delete(message)
    assert not queue.delete(message)
    assert is_empty(queue)


def test_a_message_nobody_extends_comes_again_counted_and_the_first_holder_is_fenced(queue: TestQueue) -> None:
    queue.send(BODY, message_id="m-1")
    first = received(queue, 1)
    second = received(queue)
    assert second.dequeue_count == 2
    with pytest.raises(LostLeaseError):
        queue.extend(first, 30)
    assert not queue.delete(first)
    assert not queue.retry_later(first, 0, "late")
    assert queue.delete(second)


def test_an_extended_message_stays_ours(queue: TestQueue) -> None:
    queue.send(BODY, message_id="m-1")
    message = received(queue, 1)
    for _ in range(3):
        message = queue.extend(message, 30)
    assert is_empty(queue)
    assert queue.delete(message)


def test_a_failed_message_comes_again_counted(queue: TestQueue) -> None:
    queue.send(BODY, message_id="m-1")
    assert queue.retry_later(received(queue), 0, "boom")
    again = received(queue)
    assert (again.dequeue_count, json.loads(again.body)) == (2, json.loads(BODY))


def test_a_message_that_is_put_back_comes_again_uncounted(queue: TestQueue) -> None:
    queue.send(BODY, message_id="m-1")
    assert queue.retry_later(received(queue), 0, "boom")
    for _ in range(2):
        message = received(queue)
        assert message.dequeue_count == 2
        assert queue.put_back(message, 0, "locked")
    last = received(queue)
    assert last.dequeue_count == 2
    assert json.loads(last.body)["messageId"] == "m-1"
    assert queue.delete(last)
    assert is_empty(queue)


def test_a_delayed_message_comes_later(queue: TestQueue) -> None:
    queue.send(BODY, message_id="m-1", delay_seconds=1)
    assert is_empty(queue)
    assert received(queue).dequeue_count == 1


def test_several_messages_are_received_at_once(queue: TestQueue) -> None:
    for number in range(3):
        queue.send(json.dumps({"payload": number}), message_id=f"m-{number}")
    found = queue.receive(10, 30)
    assert sorted(json.loads(message.body)["payload"] for message in found) == [0, 1, 2]


def test_what_is_no_json_survives_being_put_back(queue: TestQueue) -> None:
    queue.send("not json ☃", message_id="m-1")
    message = received(queue)
    assert message.body == "not json ☃"
    assert queue.put_back(message, 0, "locked")
    assert received(queue).body == "not json ☃"


def test_the_embedded_queue_takes_a_message_id_once_while_it_waits(sqlite_url: str) -> None:
    with embedded_queue(sqlite_url) as queue:
        assert queue.send(BODY, message_id="m-1") == queue.send(BODY, message_id="m-1")
        assert queue.delete(received(queue))
        assert is_empty(queue)


def test_a_message_too_large_for_azure_is_refused(azurite: AzuriteServer) -> None:
    with storage_queue(azurite) as queue:
        with pytest.raises(MessageError, match="takes at most 65,536"):
            queue.send("x" * 60_000, message_id="m-1")
        assert is_empty(queue)


def test_a_write_that_the_service_gave_up_on_may_have_been_done(azurite: AzuriteServer) -> None:
    """It is told as lost, never as surely not done: this one was."""
    transport = LateAnswers()
    with storage_queue(azurite, transport=transport) as queue:
        transport.is_late = True
        with pytest.raises(Ambiguous, match="may have been done: 500 OperationTimedOut"):
            queue.send(BODY, message_id="m-1")
        transport.is_late = False
        message = received(queue)
        transport.is_late = True
        with pytest.raises(Ambiguous):
            queue.delete(message)


def test_what_the_service_refused_before_it_began_was_surely_not_done(azurite: AzuriteServer) -> None:
    with storage_queue(azurite) as queue:
        for code, status, kind in [
            ("ServerBusy", 503, Unavailable),
            ("", 429, Unavailable),
            ("InvalidInput", 400, Unavailable),
            ("", 408, Ambiguous),
            ("", 502, Ambiguous),
            ("", None, Ambiguous),
        ]:
            assert type(queue._refusal("send", code, status, writes=True)) is kind
        assert type(queue._refusal("receive", "OperationTimedOut", 500, writes=False)) is Unavailable


def test_a_queue_tells_whether_it_would_take_a_message(azurite: AzuriteServer) -> None:
    with storage_queue(azurite) as queue:
        queue.check_takes("x" * 49_152, message_id="m-1")
        with pytest.raises(MessageError, match="takes at most 65,536"):
            queue.check_takes("x" * 49_153, message_id="m-1")
        assert is_empty(queue)
        queue._client.delete_queue()
        with pytest.raises(MissingQueueError):
            queue.check_takes("x", message_id="m-1")


def test_a_queue_that_is_not_there_is_told(azurite: AzuriteServer) -> None:
    with storage_queue(azurite) as queue:
        queue._client.delete_queue()
        with pytest.raises(ConfigurationError, match="There is no queue"):
            queue.receive(1, 30)


def test_messages_are_read_whether_or_not_they_are_in_base64(azurite: AzuriteServer) -> None:
    with storage_queue(azurite) as queue:
        plain = StorageQueue(queue._client, base64_encoded=False)
        plain.send(BODY, message_id="m-1")
        assert json.loads(received(queue).body) == json.loads(BODY)


def test_the_embedded_queue_keeps_its_name(sqlite_url: str) -> None:
    with embedded_queue(sqlite_url) as queue:
        assert (queue.name, queue.topic) == ("hmac-rotation-queue", "engine.hmac-rotation-queue")
