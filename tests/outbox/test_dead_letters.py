"""Messages in the dead letters go back to their processor, alone, and end once."""

from __future__ import annotations

import pytest

from holdfast.core.errors import Conflict
from holdfast.core.retry import RetryPolicy
from holdfast.outbox.context import ProcessorContext
from holdfast.outbox.message import Message
from holdfast.records.dead_letters import DeadLetter, LetterFilter, LetterStatus
from holdfast.records.tables import SqlLetterTable
from tests.outbox.shops import Shop, write_effects


class Broken:
    """A processor that refuses one amount until it is mended."""

    def __init__(self, shop: Shop, *, transactional: bool = True) -> None:
        self.shop = shop
        self.refused: int | None = 2
        self.seen: list[int] = []
        options = {"transactional": transactional, "on_error": "dead_letter"}
        shop.app.processor("totals", retry_policy=RetryPolicy(max_retries=0), **options)(self.handle)  # type: ignore[arg-type]  # as given

    def handle(self, messages: list[Message], context: ProcessorContext) -> None:
        if context._transaction is not None:
            write_effects(messages, context)
        if any(message.data["amount"] == self.refused for message in messages):
            raise ValueError("refused")
        self.seen += [message.data["amount"] for message in messages]

    def letters(self) -> list[DeadLetter]:
        return list(SqlLetterTable(self.shop.app.database).page(LetterFilter(engine="processor:totals")).items)


@pytest.fixture
def broken(shop: Shop) -> Broken:
    shop.append_each(1, 2, 3)
    made = Broken(shop)
    shop.run()
    return made


def test_a_letter_that_is_retried_is_delivered_again_and_nothing_else_is(shop: Shop, broken: Broken) -> None:
    assert broken.seen == [1, 3]
    [letter] = broken.letters()
    broken.refused = None
    shop.app.redrive.retry(letter, "anne")
    shop.run()
    assert broken.seen == [1, 3, 2]
    assert sorted(shop.effects()) == [1, 2, 3]
    [letter] = broken.letters()
    assert (letter.status, letter.resolved_by, letter.retried_as) == (LetterStatus.RESOLVED, "anne", letter.item_id)
    with pytest.raises(Conflict, match="is Resolved by anne"):
        shop.app.redrive.retry(letter, "bert")


def test_a_letter_that_fails_again_is_a_new_letter(shop: Shop, broken: Broken) -> None:
    [letter] = broken.letters()
    shop.app.redrive.retry(letter, "anne")
    shop.run()
    first, second = sorted(broken.letters(), key=lambda found: found.dequeue_count)
    assert (first.status, second.status) == (LetterStatus.RESOLVED, LetterStatus.PENDING)
    assert second.dequeue_count == first.dequeue_count + 1
    assert sorted(shop.effects()) == [1, 3]
    assert shop.execute("SELECT * FROM holdfast_processor_redeliveries") == []


def test_all_letters_of_a_processor_are_retried(shop: Shop, broken: Broken) -> None:
    broken.refused = None
    [batch] = list(shop.app.redrive.retry_all(LetterFilter(engine="processor:totals"), "anne"))
    assert batch.count == 1
    shop.run()
    assert sorted(shop.effects()) == [1, 2, 3]


def test_a_relayed_message_is_retried_too(shop: Shop) -> None:
    shop.append(2)
    broken = Broken(shop, transactional=False)
    shop.run()
    [letter] = broken.letters()
    broken.refused = None
    shop.app.redrive.retry(letter, "anne")
    shop.run()
    assert broken.seen == [2]
    assert shop.execute("SELECT * FROM holdfast_processor_redeliveries") == []


def test_a_letter_keeps_everything_of_its_message(shop: Shop, broken: Broken) -> None:
    from holdfast.outbox.letters import message_in

    [letter] = broken.letters()
    message = message_in(letter.original_message)
    assert (message.message_id, message.data, message.type) == (letter.item_id, {"amount": 2}, "Paid")
    assert (letter.original_queue, letter.instance_id, letter.error_message) == (
        "outbox",
        "v1.p0",
        "ValueError: refused",
    )
