"""Section 1.4, idempotency: what has succeeded is not executed again [ENGINE-2]."""

from __future__ import annotations

import json

import pytest

from holdfast.engines.runner import Outcome
from tests.engines.driving import Driven, Killed
from tests.engines.places import Bench


def test_1_4_what_has_succeeded_is_not_executed_again(bench: Bench) -> None:
    bench.send()
    bench.deliver()
    bench.send("m-2", "c-1")
    assert bench.deliver() is Outcome.ALREADY_DONE
    assert len(bench.executions) == 1
    assert len(bench.history) == 1
    assert bench.is_empty


def test_1_4_another_operation_of_the_same_correlation_id_is_executed(bench: Bench) -> None:
    bench.send()
    bench.deliver()
    bench.queue.send(json.dumps({"correlationId": "c-1", "operation": "notify", "payload": {}}), message_id="m-2")
    assert bench.deliver() is Outcome.SUCCEEDED
    assert [message.operation for message in bench.executions] == ["rotate", "notify"]


def test_1_4_another_engine_with_the_same_correlation_id_is_executed(bench: Bench) -> None:
    bench.hf.engine("tls", queue=f"{bench.place.queue_name}-tls", operation="rotate")(bench.handle)
    bench.hf.engines.make_queues()
    bench.send()
    bench.deliver()
    bench.hf.engines.send("tls", {}, correlation_id="c-1")
    driven = Driven(bench.hf, "tls")
    assert driven.handle(bench.next(driven.queue)) is Outcome.SUCCEEDED
    assert [message.engine for message in bench.executions] == ["hmac", "tls"]


def test_1_4_a_failure_with_the_same_correlation_id_does_not_count_as_done(bench: Bench) -> None:
    bench.fails = lambda context: context.message_id == "m-1"
    bench.send()
    bench.to_the_end()
    bench.send("m-2", "c-1")
    assert bench.deliver() is Outcome.SUCCEEDED


def test_1_4_a_success_is_found_before_the_count_is_looked_at(bench: Bench) -> None:
    """A worker dies between history and delete on its last attempt: the message is done, and no dead letter.

    In one database that cannot be, so the records are written apart from the queue here.
    """
    bench.send()
    bench.next()

    def die(boundary: str) -> None:
        if boundary == "recorded":
            raise Killed

    bench.is_apart = True
    driven = bench.flow(None, die)
    with pytest.raises(Killed):
        driven.handle(bench.next(driven.queue))
    assert bench.deliver() is Outcome.ALREADY_DONE
    assert bench.letters == []
    assert bench.is_empty


@pytest.mark.parametrize("place", ["sqlite", "postgres"], indirect=True)
def test_1_4_in_one_database_history_and_delete_are_one_transaction(bench: Bench) -> None:
    bench.send()
    assert bench.die_at("recorded")
    assert bench.history == [], "a worker that dies in it has done neither"
    assert bench.deliver() is Outcome.SUCCEEDED
    assert bench.statuses == ["Succeeded"]


def test_1_4_a_message_without_a_correlation_id_has_the_same_one_at_every_delivery(bench: Bench) -> None:
    bench.fails = lambda context: context.attempt == 1
    bench.queue.send(json.dumps({"messageId": "m-1", "payload": 1}), message_id="m-1")
    bench.queue.send(json.dumps({"payload": 2}), message_id="m-2")
    bench.to_the_end()
    ids = {
        message.payload: {each.correlation_id for each in bench.executions if each.payload == message.payload}
        for message in bench.executions
    }
    assert [len(found) for found in ids.values()] == [1, 1]
    assert ids[1] != ids[2]


@pytest.mark.parametrize("is_done", [True, False])
def test_1_4_the_history_is_looked_up_again_once_a_singleton_is_alone(singleton: Bench, is_done: bool) -> None:
    """Two messages about one piece of business: the second may have been received before the first was done.

    In Azure the first waits: the second has the piece of business in hand from before its look.
    """
    singleton.send("m-1", "c-1")
    singleton.send("m-2", "c-1" if is_done else "c-2")
    queue = singleton.queue
    flow = singleton.flow(queue)
    first = singleton.next(queue)
    [second] = queue.receive(1, 30)
    waits = is_done and singleton.place.is_azure

    def other_first(boundary: str) -> None:
        if boundary == "found not done":
            assert flow.handle(first) is (Outcome.CONFLICT if waits else Outcome.SUCCEEDED)

    late = singleton.flow(queue, other_first)
    assert late.handle(second) is (Outcome.ALREADY_DONE if is_done and not waits else Outcome.SUCCEEDED)
    assert len(singleton.executions) == (1 if is_done else 2)


def test_1_4_a_result_that_is_no_json_is_a_success_all_the_same(bench: Bench) -> None:
    bench.work = lambda context, message: object()
    bench.send()
    assert bench.deliver() is Outcome.SUCCEEDED
    assert bench.history[0].output == '{"notJson": "object"}'
