"""14.13: ``timeout_seconds`` is for a whole request, whatever the receiver does meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from azure.core.exceptions import ServiceRequestError
from azure.storage.queue import QueueClient

from holdfast.core.errors import DeliveryError
from holdfast.outbox.sinks import StorageQueueSink, WebhookSink
from holdfast.outbox.sinks.timed import MOST_LEFT_BEHIND, TimedCalls
from tests.components.processes import wait_until
from tests.outbox.sinks.messages import SOURCE, message, messages
from tests.outbox.sinks.receiver import Answer, Receiver, receiving

PATIENCE = 1.0


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as running:
        yield running


@pytest.fixture(params=["own client", "a client given"])
def sink(request: pytest.FixtureRequest, receiver: Receiver) -> Iterator[WebhookSink]:
    given = httpx.Client() if request.param == "a client given" else None
    made = WebhookSink(receiver.url, source=SOURCE, timeout_seconds=PATIENCE, client=given)
    yield made
    made.close()
    if given is not None:
        given.close()


def test_14_13_a_drip_of_headers_ends_in_time_and_its_connection_is_cut(receiver: Receiver, sink: WebhookSink) -> None:
    """Each line of it comes long before the client would give up on the next one."""
    receiver.answer = lambda request: Answer(drips=True)
    with pytest.raises(DeliveryError, match=r"did not answer within 1 s to message 'm1'") as caught:
        sink.send(messages(2))
    assert not caught.value.is_permanent
    assert receiver.was_cut_off.wait(10)
    receiver.answer = lambda request: Answer()
    sink.send(messages(2))
    assert receiver.ids == ["m1", "m1", "m2"]


def test_14_13_a_drip_on_a_connection_that_is_used_again_ends_in_time_too(receiver: Receiver) -> None:
    sink = WebhookSink(receiver.url, source=SOURCE, timeout_seconds=PATIENCE)
    receiver.answer = lambda request: Answer(drips=len(receiver.requests) > 1)
    with pytest.raises(DeliveryError, match="to message 'm2'") as caught:
        sink.send(messages(3))
    assert caught.value.delivered == ("m1",)
    assert len({request.connection for request in receiver.requests}) == 1
    assert receiver.was_cut_off.wait(10)
    sink.close()


def test_14_13_what_drips_after_a_2xx_is_a_delivery(receiver: Receiver, sink: WebhookSink) -> None:
    receiver.answer = lambda request: Answer(200, body=b"x", drips=True)
    sink.send(messages(1))
    assert receiver.was_cut_off.wait(10)


def test_14_13_lines_are_used_again_and_only_as_many_as_are_needed_at_once(receiver: Receiver) -> None:
    sink = WebhookSink(receiver.url, source=SOURCE)
    for _ in range(3):
        sink.send(messages(2))
    assert len({request.connection for request in receiver.requests}) == 1
    sink.close()


def test_14_13_calls_that_do_not_end_are_left_behind_and_only_so_many() -> None:
    calls, over, late = TimedCalls(0.01), threading.Event(), []

    def call() -> bool:
        return over.wait(60)

    for _ in range(MOST_LEFT_BEHIND):
        with pytest.raises(TimeoutError):
            calls.make(call, late=lambda: late.append(1))
    with pytest.raises(DeliveryError, match="earlier requests have not ended"):
        calls.make(call)
    over.set()
    wait_until(lambda: len(late) == MOST_LEFT_BEHIND, "those left behind to end")
    assert TimedCalls(60).make(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        TimedCalls(60).make(lambda: 1 // 0)


def test_14_13_a_storage_queue_that_does_not_come_to_an_end_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = "AccountName=shop;AccountKey=aHVudGVyMg==;QueueEndpoint=http://127.0.0.1:9/shop;"
    queue = QueueClient.from_connection_string(connection, "orders")
    over = threading.Event()
    answers: list[Callable[[], object]] = [lambda: None, lambda: over.wait(60)]

    def put(content: str, **options: Any) -> object:
        return answers.pop(0)()

    monkeypatch.setattr(queue, "send_message", put)
    sink = StorageQueueSink(queue, source=SOURCE, timeout_seconds=PATIENCE)
    with pytest.raises(DeliveryError, match=r"Message 'm2' was not taken .* \(TimeoutError\)") as caught:
        sink.send(messages(3))
    assert (caught.value.delivered, caught.value.about) == (("m1",), ("m2",))
    over.set()
    sink.close()


@pytest.mark.parametrize(
    ("status", "code", "is_permanent"),
    [
        (400, "InvalidHeaderValue", True),
        (413, "RequestBodyTooLarge", True),
        (404, "QueueNotFound", False),
        (403, "AuthenticationFailed", False),
        (503, "ServerBusy", False),
        (None, "", False),
    ],
)
def test_14_13_what_a_storage_queue_answers_is_read_as_any_other_answer(
    monkeypatch: pytest.MonkeyPatch, status: int | None, code: str, is_permanent: bool
) -> None:
    queue = QueueClient.from_connection_string(
        "AccountName=shop;AccountKey=aHVudGVyMg==;QueueEndpoint=http://127.0.0.1:9/shop;", "orders"
    )
    error = ServiceRequestError("no")
    error.status_code, error.error_code = status, code  # type: ignore[attr-defined]  # as the client does

    def put(content: str, **options: Any) -> object:
        raise error

    monkeypatch.setattr(queue, "send_message", put)
    sink = StorageQueueSink(queue, source=SOURCE)
    with pytest.raises(DeliveryError) as caught:
        sink.send([message(1)])
    assert caught.value.is_permanent is is_permanent
    sink.close()
