"""A message that Azure Functions holds: returning deletes it, raising lets it come again, a 409 is a copy."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime

import pytest
from azure.functions.queue import QueueMessage

from holdfast.core.errors import HandlerError
from holdfast.engines.context import EngineContext
from holdfast.engines.messages import EngineMessage
from holdfast.engines.runner import Outcome
from tests.engines.places import ENGINE, Bench

INSERTED = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


def hosted(count: int = 1, body: str | None = None, **fields: object) -> QueueMessage:
    given = {"messageId": "m-1", "correlationId": "c-1", "payload": {"key": 7}, **fields}
    return QueueMessage(  # type: ignore[no-untyped-call]  # Azure's
        id="host-1",
        body=(json.dumps(given) if body is None else body).encode(),
        dequeue_count=count,
        insertion_time=INSERTED.replace(tzinfo=None),
        pop_receipt="receipt",
    )


def test_a_success_returns_so_that_the_host_deletes_the_message(bench: Bench) -> None:
    assert bench.hf.engines.handle(ENGINE, hosted()) is Outcome.SUCCEEDED
    assert bench.statuses == ["Succeeded"]
    assert bench.executions[0].payload == {"key": 7}
    assert bench.is_empty


def test_an_async_function_can_await_it(bench: Bench) -> None:
    assert asyncio.run(bench.hf.engines.handle_async(ENGINE, hosted())) is Outcome.SUCCEEDED


def test_a_failure_raises_so_that_the_host_lets_it_come_again_counted(bench: Bench) -> None:
    bench.fails = lambda context: True
    with pytest.raises(HandlerError, match="failed and comes again: ValueError: no key at attempt 1"):
        bench.hf.engines.handle(ENGINE, hosted())
    assert bench.statuses == ["Failed"]
    with pytest.raises(HandlerError, match="at attempt 2"):
        bench.hf.engines.handle(ENGINE, hosted(2))
    assert bench.hf.engines.handle(ENGINE, hosted(3)) is Outcome.DEAD_LETTERED
    [letter] = bench.letters
    assert (letter.dequeue_count, letter.row_key) == (3, "m-1-20260301T120000000000Z")
    assert bench.is_empty, "the host has the message, the queue has no copy"


def test_a_message_that_is_done_returns(bench: Bench) -> None:
    bench.hf.engines.handle(ENGINE, hosted())
    assert bench.hf.engines.handle(ENGINE, hosted(2)) is Outcome.ALREADY_DONE
    assert len(bench.executions) == 1


def test_a_message_that_cannot_be_read_is_a_dead_letter_and_returns(bench: Bench) -> None:
    assert bench.hf.engines.handle(ENGINE, hosted(body="not json")) is Outcome.DEAD_LETTERED
    assert bench.letters[0].original_message == "not json"


def test_a_409_leaves_a_copy_with_the_same_ids_and_count_and_returns(singleton: Bench) -> None:
    bench = singleton
    bench.hf.registry.acquire("another", duration_seconds=50)
    assert bench.hf.engines.handle(ENGINE, hosted(2, tag="kept")) is Outcome.CONFLICT
    bench.place.clock.advance(60)
    copy = bench.next()
    told = json.loads(copy.body)
    assert (told["messageId"], told["correlationId"], told["tag"]) == ("m-1", "c-1", "kept")
    if bench.place.is_azure:  # the queue that a host takes messages from
        assert copy.dequeue_count == 2
    assert copy.inserted_at == INSERTED
    assert bench.history == []


@pytest.mark.parametrize("place", [pytest.param("azure", marks=pytest.mark.component("azurite"))], indirect=True)
def test_a_host_that_dies_between_copy_and_delete_leaves_one_execution(singleton: Bench) -> None:
    bench = singleton
    bench.hf.registry.acquire("another", duration_seconds=50)
    assert bench.hf.engines.handle(ENGINE, hosted()) is Outcome.CONFLICT
    bench.place.let_time_pass()
    assert bench.hf.engines.handle(ENGINE, hosted(2)) is Outcome.SUCCEEDED, "the host did not delete it"
    assert bench.to_the_end() == [Outcome.ALREADY_DONE]
    assert len(bench.executions) == 1


@pytest.mark.parametrize("last", ["count", "poison"])
def test_a_message_is_not_buried_while_its_copy_runs(singleton: Bench, last: str) -> None:
    """The host died between the copy of a 409 and the deletion of the original, which comes for the last time."""
    bench = singleton
    bench.hf.registry.acquire("another", duration_seconds=50)
    assert bench.hf.engines.handle(ENGINE, hosted(2)) is Outcome.CONFLICT
    bench.hf.registry.release("another")

    def original_comes(context: EngineContext, message: EngineMessage) -> None:
        if last == "count":
            assert bench.hf.engines.handle(ENGINE, hosted(3)) is Outcome.CONFLICT
        elif bench.place.is_azure:
            poison = bench.place.account.poison(bench.place.queue_name)  # type: ignore[union-attr]
            poison.send(json.dumps({"messageId": "m-1", "correlationId": "c-1"}), message_id="m-1")
            assert bench.hf.engines.drain_poison(ENGINE) == 1
        context.registry.change({"key": 7})  # the lock is still ours

    bench.work = original_comes
    assert bench.deliver() is Outcome.SUCCEEDED
    bench.work = lambda *given: None
    bench.place.let_time_pass()
    bench.hf.engines.drain_poison(ENGINE)
    bench.to_the_end()
    assert bench.ends() == ["Succeeded"]
    assert len(bench.executions) == 1
