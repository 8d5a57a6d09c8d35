"""What a host moved to ``<queue>-poison`` becomes dead letters, once each."""

from __future__ import annotations

import json

import pytest

from holdfast.engines.queue_delivery import PoisonedDelivery
from holdfast.engines.queues.protocol import EngineQueue
from holdfast.engines.runner import Outcome
from tests.engines.driving import Killed
from tests.engines.places import ENGINE, Bench

pytestmark = pytest.mark.parametrize(
    "place", [pytest.param("azure", marks=pytest.mark.component("azurite"))], indirect=True
)


def poison_of(bench: Bench) -> EngineQueue:
    assert bench.place.account is not None
    return bench.place.account.poison(bench.place.queue_name)


def move_to_poison(bench: Bench, body: str | None = None) -> None:
    """Do what the host does with a message that failed too often for it: a new message, the old one deleted."""
    queue = bench.queue
    message = bench.next(queue)
    poison_of(bench).send(message.body if body is None else body, message_id="")
    assert queue.delete(message)


def test_a_poisoned_message_is_one_dead_letter_of_its_own_queue(bench: Bench) -> None:
    bench.fails = lambda context: True
    bench.send()
    bench.deliver()
    move_to_poison(bench)
    assert bench.hf.engines.drain_poison(ENGINE) == 1
    [letter] = bench.letters
    assert (letter.original_queue, letter.item_id) == (bench.queue.name, "m-1")
    assert letter.error_message == "ValueError: no key at attempt 1", "from the history of its attempts"
    assert bench.hf.engines.drain_poison(ENGINE) == 0
    assert bench.is_empty


def test_a_poisoned_message_that_never_got_an_error_tells_that_its_worker_was_lost(bench: Bench) -> None:
    bench.send()
    move_to_poison(bench)
    bench.hf.engines.drain_poison(ENGINE)
    assert "none of its attempts has recorded an error: its worker was lost" in bench.letters[0].error_message


def test_a_poisoned_message_that_has_succeeded_is_no_dead_letter(bench: Bench) -> None:
    bench.send()
    queue = bench.queue
    message = bench.next(queue)
    poison_of(bench).send(message.body, message_id="")
    assert bench.flow(queue).handle(message) is Outcome.SUCCEEDED
    assert bench.hf.engines.drain_poison(ENGINE) == 1
    assert bench.letters == []


def test_a_poisoned_message_that_is_a_dead_letter_already_is_not_a_second_one(bench: Bench) -> None:
    bench.fails = lambda context: True
    bench.send()
    for _ in range(2):
        bench.deliver()
    message = bench.next()
    poison_of(bench).send(message.body, message_id="")
    assert bench.to_the_end() == [Outcome.DEAD_LETTERED]
    assert bench.hf.engines.drain_poison(ENGINE) == 1
    assert len(bench.letters) == 1


def test_what_cannot_be_read_in_the_poison_is_a_dead_letter(bench: Bench) -> None:
    poison_of(bench).send("not json", message_id="")
    assert bench.hf.engines.drain_poison(ENGINE) == 1
    [letter] = bench.letters
    assert (letter.original_message, letter.original_queue) == ("not json", bench.queue.name)


def test_a_drain_that_is_killed_at_its_boundary_leaves_one_dead_letter(bench: Bench) -> None:
    bench.fails = lambda context: True
    bench.send()
    bench.deliver()
    move_to_poison(bench)
    poison = poison_of(bench)
    reached: list[str] = []

    def die(boundary: str) -> None:
        reached.append(boundary)
        raise Killed

    driven = bench.flow(None, die)
    delivery = PoisonedDelivery(poison, bench.next(poison), driven.records, bench.place.clock, die)
    with pytest.raises(Killed):
        driven.flow.give_up(delivery)
    assert reached == ["buried"]
    bench.place.let_time_pass()
    assert bench.hf.engines.drain_poison(ENGINE) == 1
    assert bench.ends() == ["dead"]
    assert bench.hf.engines.drain_poison(ENGINE) == 0


def test_many_poisoned_messages_are_drained_at_once(bench: Bench) -> None:
    poison = poison_of(bench)
    for number in range(40):
        poison.send(json.dumps({"messageId": f"m-{number}", "payload": number}), message_id="")
    assert bench.hf.engines.drain_poison(ENGINE) == 40
    assert len(bench.hf.dead_letters.page(limit=100).items) == 40


def test_a_poison_queue_that_was_never_made_is_empty(bench: Bench) -> None:
    assert bench.place.account is not None
    bench.place.account._queues.delete_queue(f"{bench.place.queue_name}-poison")
    assert bench.hf.engines.drain_poison(ENGINE) == 0
