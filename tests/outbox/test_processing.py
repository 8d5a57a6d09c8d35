"""Processors: messages arrive in order, once, with their effects and the checkpoint in one transaction."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from holdfast.core.errors import ConfigurationError, LeaseConflictError
from holdfast.core.retry import RetryPolicy
from holdfast.outbox.context import ProcessorContext
from holdfast.outbox.message import Message
from holdfast.outbox.outcomes import Skip, Stop
from holdfast.records.tables import SqlLetterTable
from tests.outbox.shops import Shop, write_effect, write_effects

AT_ONCE = RetryPolicy(max_retries=1, base_delay_seconds=0.001, max_delay_seconds=0.001)


def test_250_messages_at_batch_100_all_arrive_in_order(shop: Shop) -> None:
    """[OUTBOX-3]."""
    shop.append_many(250)
    batches = []

    @shop.app.processor("totals", batch_size=100)
    def totals(messages: list[Message], context: ProcessorContext) -> None:
        batches.append(len(messages))
        write_effects(messages, context)

    assert shop.run() == 250
    assert batches == [100, 100, 50]
    assert sorted(shop.effects()) == list(range(250))


def test_a_processor_goes_on_where_it_stopped(shop: Shop) -> None:
    shop.append(1, 2)
    shop.app.processor("totals")(write_effects)
    assert shop.run() == 2
    shop.append(3)
    again = shop.another()
    again.app.processor("totals")(write_effects)
    assert again.run() == 1
    again.provider.dispose_all()
    assert sorted(shop.effects()) == [1, 2, 3]


def test_a_failing_handler_leaves_no_effect_and_no_checkpoint_and_stops_the_processor(shop: Shop) -> None:
    shop.append(1, 2)
    tries = []

    @shop.app.processor("totals", retry_policy=AT_ONCE)
    def totals(messages: list[Message], context: ProcessorContext) -> None:
        tries.append(context.attempt)
        write_effects(messages, context)
        raise ValueError("no such account")

    with pytest.raises(LeaseConflictError, match=rf"was stopped: ValueError at {re.escape(Path(__file__).name)}:\d+"):
        shop.run()
    assert tries == [1, 2]
    assert shop.effects() == []
    place = shop.place()
    assert place.checkpoint is None
    assert not place.may_run
    with pytest.raises(LeaseConflictError, match="holdfast processor resume totals"):
        shop.run()
    assert tries == [1, 2]


def test_a_stopped_processor_goes_on_when_it_is_resumed(shop: Shop) -> None:
    shop.append(1)
    broken = [True]

    @shop.app.processor("totals", retry_policy=RetryPolicy(max_retries=0))
    def totals(messages: list[Message], context: ProcessorContext) -> None:
        write_effects(messages, context)
        if broken:
            raise ValueError("not yet")

    with pytest.raises(LeaseConflictError):
        shop.run()
    broken.clear()
    assert shop.app.processors.operator.resume("totals", actor="anne") == 1
    assert shop.run() == 1
    assert shop.effects() == [1]


def test_only_what_fails_alone_becomes_a_dead_letter(shop: Shop) -> None:
    shop.append_each(1, 2, 3, 4)

    @shop.app.processor("totals", on_error="dead_letter", retry_policy=RetryPolicy(max_retries=0))
    def totals(messages: list[Message], context: ProcessorContext) -> None:
        for message in messages:
            write_effect(context.transaction, message)
            if message.data["amount"] == 3:
                raise ValueError("three is too many")

    shop.run()
    assert sorted(shop.effects()) == [1, 2, 4]
    [letter] = SqlLetterTable(shop.app.database).page().items
    assert (letter.engine, letter.error_message) == ("processor:totals", "ValueError: three is too many")
    assert '"amount": 3' in letter.original_message


def test_what_is_skipped_has_no_effect_and_is_passed(shop: Shop) -> None:
    shop.append(1)

    @shop.app.processor("totals")
    def totals(messages: list[Message], context: ProcessorContext) -> Skip:
        write_effects(messages, context)
        return Skip("not ours")

    assert shop.run() == 1
    assert shop.effects() == []
    assert shop.place().checkpoint is not None
    assert shop.run() == 0


def test_a_handler_may_stop_its_processor_after_a_batch(shop: Shop) -> None:
    shop.append_each(1, 2)

    @shop.app.processor("totals", batch_size=1)
    def totals(messages: list[Message], context: ProcessorContext) -> Stop:
        write_effects(messages, context)
        return Stop("enough")

    with pytest.raises(LeaseConflictError, match="enough"):
        shop.run()
    assert shop.effects() == [1]
    assert shop.place().reason == "enough"


def test_only_wanted_types_are_delivered_and_the_others_are_passed(shop: Shop) -> None:
    shop.append(1, kind="Paid")
    shop.append(2, kind="Refunded")
    shop.append(3, kind="Refunded")
    seen: list[int] = []

    @shop.app.processor("totals", types=["Paid"])
    def totals(messages: list[Message]) -> None:
        seen.extend(message.data["amount"] for message in messages)

    shop.run()
    assert seen == [1]
    assert shop.app.processors.operator.views("totals")[0].behind == 0


def test_start_from_the_end_leaves_out_what_was_there(shop: Shop) -> None:
    shop.append(1)
    shop.number()
    shop.app.processor("totals", start_from="end")(write_effects)
    assert shop.run() == 0
    shop.append(2)
    assert shop.run() == 1
    assert shop.effects() == [2]


def test_start_from_stored_needs_a_checkpoint(shop: Shop) -> None:
    shop.app.processor("totals", start_from="stored")(write_effects)
    with pytest.raises(ConfigurationError, match="has no stored checkpoint"):
        shop.run()


def test_an_async_handler_awaits_its_transaction(shop: Shop) -> None:
    shop.append(1, 2)

    @shop.app.processor("totals")
    async def totals(messages: list[Message], context: ProcessorContext) -> None:
        for message in messages:
            await asyncio.sleep(0)
            values = {"id": message.message_id, "amount": message.data["amount"]}
            await context.transaction.execute(text("INSERT INTO effects VALUES (:id, :amount)"), values)

    assert shop.run() == 2
    assert sorted(shop.effects()) == [1, 2]


def test_a_handler_that_commits_itself_is_refused_and_nothing_is_kept(shop: Shop) -> None:
    shop.append(1)

    @shop.app.processor("totals", retry_policy=RetryPolicy(max_retries=0))
    def totals(messages: list[Message], context: ProcessorContext) -> None:
        write_effects(messages, context)
        context.transaction.commit()

    with pytest.raises(LeaseConflictError, match=r"commit\(\) on context\.transaction, which is refused"):
        shop.run()
    assert shop.effects() == []
    assert shop.place().checkpoint is None


def test_partitions_share_the_messages_by_key_and_progress_independently(shop: Shop) -> None:
    for number in range(30):
        shop.append(number, key=f"customer-{number % 7}")
    seen: dict[int, list[int]] = {}

    @shop.app.processor("totals", partitions=3, batch_size=4)
    def totals(messages: list[Message], context: ProcessorContext) -> None:
        seen.setdefault(context.partition, []).extend(message.data["amount"] for message in messages)

    assert shop.run() == 30
    assert sorted(amount for part in seen.values() for amount in part) == list(range(30))
    assert len(seen) > 1
    for amounts in seen.values():
        assert amounts == sorted(amounts)
        keys = {amount % 7 for amount in amounts}
        others = {other % 7 for part in seen.values() if part is not amounts for other in part}
        assert not keys & others


def test_a_handler_without_transaction_is_told_so(shop: Shop) -> None:
    shop.append(1)
    told: list[Any] = []

    @shop.app.processor("totals", transactional=False)
    def totals(messages: list[Message], context: ProcessorContext) -> None:
        with pytest.raises(ConfigurationError, match="transactional=False"):
            _ = context.transaction
        told.extend(messages)

    assert shop.run() == 1
    assert len(told) == 1
