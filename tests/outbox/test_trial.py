"""What a new user ran into: wrong declarations, places beyond the end, handlers that leave by other ways."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine

from holdfast import Holdfast
from holdfast.core.errors import ConfigurationError, Conflict, LeaseConflictError, MessageError, OutboxError
from holdfast.core.retry import RetryPolicy
from holdfast.outbox.context import ProcessorContext
from holdfast.outbox.message import Checkpoint, Message, NewMessage
from holdfast.outbox.outcomes import Skip
from holdfast.records.tables import SqlLetterTable
from tests.outbox.shops import Shop, write_effects

AT_ONCE = RetryPolicy(max_retries=0)
ONCE_MORE = RetryPolicy(max_retries=1, base_delay_seconds=0.001, max_delay_seconds=0.001)


def test_a_handler_that_commits_past_us_and_fails_stops_loudly(shop: Shop) -> None:
    """Half of its effects are kept, and not its checkpoint: nobody repeats them silently."""
    shop.append(1, 2)

    @shop.app.processor("totals", retry_policy=ONCE_MORE)
    def totals(messages: list[Message], context: ProcessorContext) -> None:
        write_effects(messages[:1], context)
        context.transaction.connection.commit()
        raise ValueError("later")

    with pytest.raises(LeaseConflictError, match=r"ended context\.transaction itself.*may be kept"):
        shop.run()
    assert not shop.place().may_run


@pytest.mark.parametrize("leaving", [SystemExit(1), KeyboardInterrupt()])
def test_a_handler_that_leaves_has_failed(shop: Shop, leaving: BaseException) -> None:
    shop.append(1)

    @shop.app.processor("totals", retry_policy=AT_ONCE)
    def totals(messages: list[Message], context: ProcessorContext) -> None:
        write_effects(messages, context)
        raise leaving

    with pytest.raises(LeaseConflictError, match=type(leaving).__name__):
        shop.run()
    assert shop.effects() == []


def test_the_class_of_an_answer_is_taken_for_the_answer(shop: Shop) -> None:
    shop.append(1)

    @shop.app.processor("totals")
    def totals(messages: list[Message], context: ProcessorContext) -> type[Skip]:
        write_effects(messages, context)
        return Skip

    assert shop.run() == 1
    assert shop.effects() == []


def test_an_answer_that_cannot_be_compared_is_done(sqlite_shop: Shop) -> None:
    class Odd:
        def __eq__(self, other: object) -> bool:
            raise ValueError("ambiguous")

        __hash__ = object.__hash__

    sqlite_shop.append(1)

    @sqlite_shop.app.processor("totals", retry_policy=AT_ONCE)
    def totals(messages: list[Message], context: ProcessorContext) -> Odd:
        write_effects(messages, context)
        return Odd()

    assert sqlite_shop.run() == 1
    assert sqlite_shop.effects() == [1]


def test_a_message_put_back_to_a_handler_that_ends_its_transaction_is_a_letter_again(shop: Shop) -> None:
    shop.append(1, 2)

    @shop.app.processor("totals", retry_policy=AT_ONCE, on_error="dead_letter")
    def totals(messages: list[Message], context: ProcessorContext) -> None:
        if messages[0].data["amount"] == 1:
            context.transaction.rollback()
        else:
            write_effects(messages, context)

    shop.run()
    [letter] = SqlLetterTable(shop.app.database).page().items
    shop.app.redrive.retry(letter, "anne")
    shop.run()
    assert sorted(str(found.status) for found in SqlLetterTable(shop.app.database).page().items) == [
        "Pending",
        "Resolved",
    ]
    assert shop.effects() == [2]


def test_a_failing_processor_is_seen_to_fail_while_it_tries(shop: Shop) -> None:
    shop.append(1)
    seen: list[str | None] = []

    @shop.app.processor("totals", retry_policy=ONCE_MORE)
    def totals(messages: list[Message], context: ProcessorContext) -> None:
        seen.append(shop.place().reason if shop.app.database.dialect.name != "sqlite" else None)
        if context.attempt == 1:
            raise ValueError("partner is down")

    shop.run()
    assert shop.place().reason is None
    if shop.app.database.dialect.name != "sqlite":
        line = totals.__code__.co_firstlineno + 4
        assert seen == [None, f"try 1 failed: ValueError at {Path(__file__).name}:{line}"]


def test_a_place_beyond_the_last_message_is_refused(shop: Shop) -> None:
    shop.append(1)
    shop.app.processor("totals")(write_effects)
    shop.run()
    beyond = Checkpoint(999_999_999, 999_999_999)
    with pytest.raises(Conflict, match="beyond the last message"):
        shop.app.processors.operator.reset("totals", beyond, actor="anne")
    shop.app.processor("other", start_from=beyond)(write_effects)
    with pytest.raises(ConfigurationError, match="beyond the last message"):
        shop.app.processors.register()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"retry_policy": 3}, "must be a RetryPolicy"),
        ({"transactional": "no"}, "must be True or False"),
        ({"types": "Paid"}, "must be a list of message types"),
        ({"version": 0}, "version=0 must be a whole number"),
        ({"partitions": 0}, "partitions=0 must be a whole number"),
        ({"start_from": "yesterday"}, "start_from='yesterday' is not known"),
    ],
)
def test_a_wrong_declaration_is_refused_at_once(sqlite_shop: Shop, options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        sqlite_shop.app.processor("totals", **options)(write_effects)


def test_what_is_no_handler_or_no_sink_is_refused_at_once(sqlite_shop: Shop) -> None:
    class Sink:
        def send(self, messages: object) -> None: ...

    with pytest.raises(ConfigurationError, match="is no function"):
        sqlite_shop.app.processor("totals")(None)  # type: ignore[type-var]  # wrong on purpose
    for wrong in (object(), Sink):
        with pytest.raises(ConfigurationError, match="is no sink"):
            sqlite_shop.app.relay("orders", wrong)  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(ConfigurationError, match="transactional=True cannot hold"):
        sqlite_shop.app.relay("orders", Sink(), transactional=True)


@pytest.mark.parametrize("retention", [30, timedelta(days=-1), timedelta(), "30d"])
def test_a_wrong_retention_is_refused(sqlite_url: str, retention: Any) -> None:
    with pytest.raises(ConfigurationError, match="outbox_retention="):
        Holdfast(sqlite_url, outbox_retention=retention)


def test_a_processor_nobody_runs_is_told_when_it_is_waited_for(sqlite_shop: Shop) -> None:
    sqlite_shop.append(1)
    sqlite_shop.app.processor("totals")(write_effects)
    with pytest.raises(OutboxError, match="nobody has run it yet"):
        sqlite_shop.app.processors.when_caught_up("totals", timeout_seconds=0.05)
    sqlite_shop.app.processors.register()
    with pytest.raises(OutboxError, match="is at the beginning of 0:1"):
        sqlite_shop.app.processors.when_caught_up("totals", timeout_seconds=0.05)


def test_a_database_without_an_outbox_is_told(sqlite_shop: Shop, tmp_path: Any) -> None:
    elsewhere = create_engine(f"sqlite:///{tmp_path / 'elsewhere.db'}")
    with elsewhere.begin() as connection, pytest.raises(ConfigurationError, match="There is no outbox in the database"):
        sqlite_shop.app.outbox.append(connection, "Paid", {})
    elsewhere.dispose()


def test_wrong_arguments_of_an_append_are_told(sqlite_shop: Shop) -> None:
    with sqlite_shop.app.database.begin() as connection:
        with pytest.raises(MessageError, match="headers must be a mapping"):
            sqlite_shop.app.outbox.append(connection, "Paid", {}, headers=[1])  # type: ignore[arg-type]  # on purpose
        with pytest.raises(MessageError, match="takes several messages"):
            sqlite_shop.app.outbox.append_many(connection, NewMessage(type="Paid", data=1))  # type: ignore[arg-type]  # on purpose
