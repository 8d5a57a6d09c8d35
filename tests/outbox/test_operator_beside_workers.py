"""What people do beside running workers is noticed by them, also while nothing comes."""

from __future__ import annotations

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from holdfast.core.errors import ConfigurationError, Conflict, LeaseConflictError, MessageError
from holdfast.core.retry import RetryPolicy
from holdfast.outbox.context import ProcessorContext
from holdfast.outbox.message import Checkpoint, Message
from holdfast.outbox.outcomes import Skip, Stop
from holdfast.records.tables import SqlLetterTable
from tests.components.processes import wait_until
from tests.outbox.shops import Shop, write_effects
from tests.outbox.test_instances import working

AT_ONCE = RetryPolicy(max_retries=0)


def test_an_idle_processor_notices_a_checkpoint_moved_by_hand(shop: Shop) -> None:
    seen: list[int] = []

    @shop.app.processor("totals", poll_seconds=0.01)
    def totals(messages: list[Message]) -> None:
        seen.extend(message.data["amount"] for message in messages)

    shop.append(1, 2)
    with working(shop):
        wait_until(lambda: len(seen) == 2, "both messages")
        shop.app.processors.operator.reset("totals", None, actor="anne")
        wait_until(lambda: len(seen) == 4, "both messages again")


def test_a_rebuild_beside_an_idle_worker_ends(shop: Shop) -> None:
    shop.app.processor("totals", poll_seconds=0.01)(write_effects)
    shop.append(1, 2)
    operator = shop.app.processors.operator
    with working(shop):
        wait_until(lambda: len(shop.effects()) == 2, "both messages")
        operator.start_rebuild("totals", ["effects"], actor="anne")
        wait_until(lambda: operator.rebuild_progress("totals").is_over, "the rebuild")
    assert sorted(shop.effects()) == [1, 2]


def test_an_idle_processor_notices_that_it_was_stopped(shop: Shop) -> None:
    shop.app.processor("totals")(write_effects)
    processor = shop.app.processors.get("totals")
    shop.app.processors.register()
    runner = shop.app.processors.runner(processor, processor.partition_ids[0])
    with runner.leased() as lease:
        shop.app.processors.operator.stop("totals", actor="anne", reason="maintenance")
        with pytest.raises(LeaseConflictError, match="maintenance"):
            runner.process_batch(lease)


def test_a_rebuild_of_nothing_is_over_at_once(shop: Shop) -> None:
    shop.app.processor("totals")(write_effects)
    shop.app.processors.register()
    operator = shop.app.processors.operator
    assert operator.start_rebuild("totals", ["effects"], actor="anne")
    assert operator.rebuild_progress("totals").is_over
    assert not operator.is_rebuilding("totals", 1)


def test_long_stretches_of_unwanted_messages_are_passed_in_one_go(shop: Shop) -> None:
    for number in range(30):
        shop.append(number, kind="Other")
    shop.append(99, kind="Paid")
    seen: list[int] = []

    @shop.app.processor("totals", types=["Paid"], batch_size=1)
    def totals(messages: list[Message]) -> None:
        seen.extend(message.data["amount"] for message in messages)

    assert shop.run() == 1
    assert seen == [99]


def test_a_letter_of_a_retired_version_stays_where_it_is(shop: Shop) -> None:
    """The active version reads the message by itself: to deliver the letter to it would double the effects."""
    shop.append(1)

    def refuse(messages: list[Message]) -> None:
        raise ValueError("no")

    shop.app.processor("totals", on_error="dead_letter", retry_policy=AT_ONCE)(refuse)
    shop.run("totals", 1)
    shop.app.processor("totals", version=2)(write_effects)
    shop.run("totals", 2)
    shop.app.processors.operator.promote("totals", 2, actor="anne")
    [letter] = SqlLetterTable(shop.app.database).page().items
    with pytest.raises(ConfigurationError, match="read the message of the dead letter"):
        shop.app.redrive.retry(letter, "anne")
    assert shop.effects() == [1]


def test_a_letter_of_a_forgotten_processor_stays_where_it_is(shop: Shop) -> None:
    shop.append(1)

    @shop.app.processor("totals", on_error="dead_letter", retry_policy=AT_ONCE)
    def refuse(messages: list[Message]) -> None:
        raise ValueError("no")

    shop.run()
    shop.app.processors.operator.forget("totals", actor="anne")
    [letter] = SqlLetterTable(shop.app.database).page().items
    with pytest.raises(ConfigurationError, match="retired or not registered any more"):
        shop.app.redrive.retry(letter, "anne")
    [letter] = SqlLetterTable(shop.app.database).page().items
    assert str(letter.status) == "Pending"


@pytest.mark.parametrize(("answer", "effects"), [(Skip("not ours"), []), (Stop("enough"), [1]), (None, [1])])
def test_the_answer_to_a_message_that_was_put_back_counts(shop: Shop, answer: object, effects: list[int]) -> None:
    shop.append(1)
    answers: list[object] = [ValueError("first")]

    @shop.app.processor("totals", on_error="dead_letter", retry_policy=AT_ONCE)
    def totals(messages: list[Message], context: ProcessorContext) -> object:
        write_effects(messages, context)
        given = answers.pop()
        if isinstance(given, Exception):
            raise given
        return given

    shop.run()
    [letter] = SqlLetterTable(shop.app.database).page().items
    shop.app.redrive.retry(letter, "anne")
    answers.append(answer)
    if isinstance(answer, Stop):
        with pytest.raises(LeaseConflictError, match="enough"):
            shop.run()
    else:
        shop.run()
    assert shop.effects() == effects
    assert shop.execute("SELECT * FROM holdfast_processor_redeliveries") == []


@pytest.mark.component("postgres18")
def test_a_message_that_was_put_back_has_the_same_idle_limit(postgres_shop: Shop) -> None:
    postgres_shop.append(1)
    limits: list[str] = []

    @postgres_shop.app.processor("totals", on_error="dead_letter", retry_policy=AT_ONCE, lease_seconds=7)
    def totals(messages: list[Message], context: ProcessorContext) -> None:
        limits.append(context.transaction.execute(text("SHOW idle_in_transaction_session_timeout")).scalar_one())
        if len(limits) == 1:
            raise ValueError("first")

    postgres_shop.run()
    [letter] = SqlLetterTable(postgres_shop.app.database).page().items
    postgres_shop.app.redrive.retry(letter, "anne")
    postgres_shop.run()
    assert limits == ["7s", "7s"]


def test_every_version_retired_is_told(shop: Shop) -> None:
    shop.app.processor("totals")(write_effects)
    shop.app.processors.register()
    shop.execute("UPDATE holdfast_processor_checkpoints SET role = 'retired'")
    with pytest.raises(Conflict, match="Every version of processor 'totals' is retired"):
        shop.app.processors.operator.reset("totals", None, actor="anne")


def test_a_session_in_autocommit_is_refused(shop: Shop) -> None:
    engine = create_engine(shop.url, isolation_level="AUTOCOMMIT")
    with Session(engine) as session, pytest.raises(MessageError, match="outside a transaction"):
        shop.app.outbox.append(session, "Paid", {})
    engine.dispose()


def test_asyncio_connections_are_told_what_to_do(sqlite_shop: Shop) -> None:
    session = type("AsyncSession", (), {"__module__": "sqlalchemy.ext.asyncio.session"})()  # needs greenlet to be real
    with pytest.raises(ConfigurationError, match=r"run_sync\(hf\.outbox\.append"):
        sqlite_shop.app.outbox.append(session, "Paid", {})


@pytest.mark.component("postgres18")
def test_a_driver_that_cannot_be_used_is_told(postgres_shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    with postgres_shop.app.database.begin() as connection:
        monkeypatch.setattr(connection.dialect, "paramstyle", "numeric_dollar")
        with pytest.raises(ConfigurationError, match="cannot use the driver psycopg"):
            postgres_shop.app.outbox.append(connection, "Paid", {})


@pytest.mark.component("postgres18")
def test_a_rebuild_after_an_adoption_replays_everything(postgres_shop: Shop) -> None:
    shop = postgres_shop
    shop.append_each(1, 2)
    shop.execute("UPDATE holdfast_outbox SET position = position - 3, transaction_id = '0'")
    shop.app.processor("totals")(write_effects)
    shop.run()
    assert shop.place().checkpoint == Checkpoint(0, -1)
    operator = shop.app.processors.operator
    operator.start_rebuild("totals", ["effects"], actor="anne")
    assert not operator.rebuild_progress("totals").is_over
    shop.run()
    assert operator.rebuild_progress("totals").is_over
    assert sorted(shop.effects()) == [1, 2]
