"""A relay from outbox to webhook: what is appended arrives, in order, and again with the same ids when it failed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast import RetryPolicy
from holdfast.core.errors import LeaseConflictError
from holdfast.outbox.sinks import WebhookSink, new_secret, verify
from tests.outbox.shops import Shop
from tests.outbox.sinks.messages import SOURCE
from tests.outbox.sinks.receiver import Answer, Receiver, receiving

ONCE = RetryPolicy(max_retries=0)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as running:
        yield running


def test_what_is_appended_arrives_signed_in_order_and_once(sqlite_shop: Shop, receiver: Receiver) -> None:
    secret = new_secret()
    sink = WebhookSink(receiver.url, source=SOURCE, secret=secret)
    sqlite_shop.app.relay("orders-webhook", sink, types=["Paid"], batch_size=4)
    appended = sqlite_shop.append(*range(10))
    sqlite_shop.append(99, kind="Cancelled")
    assert sqlite_shop.run("orders-webhook") == 10
    assert sqlite_shop.run("orders-webhook") == 0
    assert receiver.ids == appended
    sequences = [request.event["sequence"] for request in receiver.requests]
    assert sequences == sorted(sequences)
    for request in receiver.requests:
        verify(request.body, request.headers, secret)
    sink.close()


def test_a_batch_that_failed_half_way_goes_on_with_the_message_that_failed(
    sqlite_shop: Shop, receiver: Receiver
) -> None:
    sink = WebhookSink(receiver.url, source=SOURCE)
    sqlite_shop.app.relay("orders-webhook", sink, retry_policy=RetryPolicy(max_retries=1, base_delay_seconds=0.001))
    appended = sqlite_shop.append(1, 2, 3, 4)
    receiver.answer = lambda request: Answer(503 if len(receiver.requests) == 3 else 204)
    sqlite_shop.run("orders-webhook")
    assert receiver.ids == [*appended[:3], *appended[2:]]
    assert receiver.requests[2].body == receiver.requests[3].body
    sink.close()


def test_a_relay_that_keeps_failing_stops_with_the_sinks_own_words_and_loses_nothing(
    sqlite_shop: Shop, receiver: Receiver
) -> None:
    sink = WebhookSink(receiver.url, source=SOURCE)
    sqlite_shop.app.relay("orders-webhook", sink, retry_policy=ONCE)
    appended = sqlite_shop.append(1, 2)
    receiver.answer = lambda request: Answer(500)
    with pytest.raises(LeaseConflictError, match="answered 500"):
        sqlite_shop.run("orders-webhook")
    place = sqlite_shop.place("orders-webhook")
    assert not place.may_run
    assert f"answered 500 to message '{appended[0]}'" in str(place.reason)
    assert place.checkpoint is None
    sink.close()


def test_with_dead_letters_only_the_refused_message_is_set_aside(sqlite_shop: Shop, receiver: Receiver) -> None:
    sink = WebhookSink(receiver.url, source=SOURCE)
    sqlite_shop.app.relay("orders-webhook", sink, retry_policy=ONCE, on_error="dead_letter")
    appended = sqlite_shop.append(1, 2, 3)
    receiver.answer = lambda request: Answer(422 if request.headers["webhook-id"] == appended[1] else 204)
    sqlite_shop.run("orders-webhook")
    assert set(receiver.ids) == set(appended)
    assert receiver.ids[-1] == appended[2]
    [letter] = sqlite_shop.execute("SELECT error_message FROM holdfast_dead_letters")
    assert f"answered 422 to message '{appended[1]}'" in letter["error_message"]
    sink.close()
