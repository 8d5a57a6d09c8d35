"""14.13: ``on_error="park"``: what fails for good waits with the later messages of its key, and the others go on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Unpack

import pytest

from holdfast.core.errors import DeliveryError
from holdfast.core.retry import RetryPolicy
from holdfast.outbox.context import ProcessorContext
from holdfast.outbox.letters import WAITS
from holdfast.outbox.message import Message, NewMessage
from holdfast.outbox.options import ProcessorOptions
from holdfast.records.dead_letters import DeadLetter, LetterFilter, LetterStatus
from holdfast.records.tables import SqlLetterTable
from tests.components.processes import wait_until
from tests.outbox.shops import Shop, write_effects
from tests.outbox.test_instances import working

AT_ONCE = RetryPolicy(max_retries=0)


class Partner:
    """A sink that refuses some messages until it is mended."""

    def __init__(self) -> None:
        self.refused: set[str] = set()
        self.busy: Counter[str] = Counter()
        self.tried: list[str] = []
        self.has: list[str] = []

    def send(self, messages: Sequence[Message]) -> None:
        before = len(self.has)
        for message in messages:
            self.tried.append(message.message_id)
            if message.message_id in self.refused:
                raise DeliveryError(
                    "refused", is_permanent=True, delivered=self.has[before:], about=[message.message_id]
                )
            if self.busy[message.message_id] > 0:
                self.busy[message.message_id] -= 1
                raise DeliveryError("busy", delivered=self.has[before:], about=[message.message_id])
            self.has.append(message.message_id)

    def of(self, key: str) -> list[str]:
        return [name for name in self.has if name.startswith(key)]


class Parked:
    """A relay to a partner, and what waits in it."""

    def __init__(self, shop: Shop, **options: Unpack[ProcessorOptions]) -> None:
        self.shop = shop
        self.partner = Partner()
        options["on_error"] = "park"
        shop.app.relay("orders", self.partner, **options)

    def append(self, *names: str) -> None:
        """Append messages called after their key: ``a1`` is the first of key ``a``; ``-1`` has none."""
        with self.shop.app.database.begin() as connection:
            new = [
                NewMessage(type="Paid", data={"amount": 1}, message_id=name, key=name[0] if name[0] != "-" else None)
                for name in names
            ]
            self.shop.app.outbox.append_many(connection, new)

    def run(self) -> None:
        self.shop.run("orders")

    @property
    def letters(self) -> dict[str, DeadLetter]:
        """The Pending letters, by message."""
        wanted = LetterFilter(engine="processor:orders", status=LetterStatus.PENDING)
        return {str(letter.item_id): letter for letter in SqlLetterTable(self.shop.app.database).page(wanted).items}

    def retry(self, name: str) -> None:
        self.shop.app.redrive.retry(self.letters[name], "anne")

    def retry_all(self) -> None:
        wanted = LetterFilter(engine="processor:orders")
        refusals = [refusal for batch in self.shop.app.redrive.retry_all(wanted, "anne") for refusal in batch.refusals]
        assert refusals == []

    def resolve(self, name: str) -> None:
        letter = self.letters[name]
        SqlLetterTable(self.shop.app.database).resolve(letter.engine, letter.row_key, "told them by phone", "anne")

    def assert_nothing_waits(self) -> None:
        assert self.letters == {}
        for table in ("parked", "redeliveries"):
            assert self.shop.execute(f"SELECT * FROM holdfast_processor_{table}") == []


@pytest.fixture
def parked(sqlite_shop: Shop) -> Parked:
    return parked_on(sqlite_shop)


@pytest.fixture
def parked_anywhere(shop: Shop) -> Parked:
    """On PostgreSQL, MariaDB and SQLite."""
    return parked_on(shop)


def parked_on(shop: Shop) -> Parked:
    """``a2`` is refused: ``a3`` waits behind it, and ``a4`` that came later."""
    made = Parked(shop)
    made.partner.refused = {"a2"}
    made.append("a1", "b1", "a2", "b2", "a3", "-1")
    made.run()
    made.append("a4", "b3")
    made.run()
    assert made.partner.has == ["a1", "b1", "b2", "-1", "b3"]
    return made


def test_14_13_later_messages_of_the_key_wait_and_follow_in_order_when_what_failed_is_retried(
    parked_anywhere: Parked,
) -> None:
    parked = parked_anywhere
    assert parked.partner.tried.count("a2") == 1
    assert set(parked.letters) == {"a2", "a3", "a4"}
    assert "refused" in parked.letters["a2"].error_message
    assert {parked.letters[name].error_message for name in ("a3", "a4")} == {WAITS}
    assert parked.shop.place("orders").may_run
    parked.partner.refused = set()
    parked.retry("a2")
    parked.append("a5")
    parked.run()
    assert parked.partner.of("a") == ["a1", "a2", "a3", "a4", "a5"]
    parked.assert_nothing_waits()


def test_14_13_all_letters_can_be_retried_and_are_delivered_in_order(parked: Parked) -> None:
    parked.partner.refused = set()
    parked.retry_all()
    parked.run()
    assert parked.partner.of("a") == ["a1", "a2", "a3", "a4"]
    parked.assert_nothing_waits()


def test_14_13_a_message_that_is_retried_before_the_one_it_waits_for_still_waits(parked: Parked) -> None:
    parked.retry("a4")
    parked.run()
    assert parked.partner.of("a") == ["a1"]
    parked.partner.refused = set()
    parked.retry("a2")
    parked.run()
    assert parked.partner.of("a") == ["a1", "a2", "a3", "a4"]
    parked.assert_nothing_waits()


def test_14_13_what_fails_again_parks_its_key_again_and_all_behind_it_are_seen(parked_anywhere: Parked) -> None:
    parked = parked_anywhere
    parked.retry_all()
    parked.run()
    assert parked.partner.of("a") == ["a1"]
    assert set(parked.letters) == {"a2", "a3", "a4"}
    assert parked.letters["a2"].dequeue_count == 2
    parked.partner.refused = {"a3"}
    parked.retry("a2")
    parked.run()
    assert parked.partner.of("a") == ["a1", "a2"]
    assert set(parked.letters) == {"a3", "a4"}
    parked.partner.refused = set()
    parked.retry("a3")
    parked.run()
    assert parked.partner.of("a") == ["a1", "a2", "a3", "a4"]
    parked.assert_nothing_waits()


def test_14_13_what_only_waited_is_tried_as_often_as_any_other_message(sqlite_shop: Shop) -> None:
    parked = Parked(sqlite_shop, retry_policy=RetryPolicy(max_retries=2, base_delay_seconds=0.001))
    parked.partner.refused = {"a1"}
    parked.append("a1", "a2")
    parked.run()
    parked.partner.refused = set()
    parked.partner.busy = Counter(a1=0, a2=2)
    parked.retry("a1")
    parked.run()
    assert parked.partner.of("a") == ["a1", "a2"]
    parked.assert_nothing_waits()


def test_14_13_when_a_person_settles_what_failed_those_behind_it_go_on_without_it(parked: Parked) -> None:
    parked.resolve("a2")
    parked.run()
    assert parked.partner.of("a") == ["a1", "a3", "a4"]
    parked.assert_nothing_waits()


@pytest.mark.component("postgres18")
def test_14_13_a_worker_that_rests_notices_that_a_person_has_settled_what_failed(postgres_shop: Shop) -> None:
    """Nobody wakes it for that."""
    parked = parked_on(postgres_shop)
    with working(postgres_shop):
        parked.append("c1")
        wait_until(lambda: "c1" in parked.partner.has, "the worker to have read everything")
        parked.resolve("a2")
        wait_until(lambda: parked.partner.of("a") == ["a1", "a3", "a4"], "those that waited")


def test_14_13_a_person_may_settle_one_that_waits(parked: Parked) -> None:
    parked.partner.refused = set()
    parked.resolve("a3")
    parked.retry("a2")
    parked.run()
    assert parked.partner.of("a") == ["a1", "a2", "a4"]
    parked.assert_nothing_waits()


def test_14_13_another_instance_knows_which_keys_are_parked(parked: Parked) -> None:
    other = parked.shop.another()
    successor = Parked(other)
    successor.append("a5", "b4")
    successor.run()
    assert successor.partner.has == ["b4"]
    assert set(successor.letters) == {"a2", "a3", "a4", "a5"}
    other.provider.dispose_all()


def test_14_13_a_key_that_differs_in_a_space_is_another_key(shop: Shop) -> None:
    parked = Parked(shop)
    parked.partner.refused = {"m1"}
    for name, key in (("m1", "order-7"), ("m2", "order-7 "), ("m3", "Order-7"), ("m4", "order-7")):
        with shop.app.database.begin() as connection:
            shop.app.outbox.append(connection, "Paid", {}, message_id=name, key=key)
    parked.run()
    assert parked.partner.has == ["m2", "m3"]
    parked.run()
    assert set(parked.letters) == {"m1", "m4"}


def test_14_13_messages_without_a_key_wait_for_nobody(sqlite_shop: Shop) -> None:
    parked = Parked(sqlite_shop)
    parked.partner.refused = {"-1"}
    parked.append("-1", "-2", "-3")
    parked.run()
    assert parked.partner.has == ["-2", "-3"]
    assert set(parked.letters) == {"-1"}
    parked.partner.refused = set()
    parked.retry("-1")
    parked.run()
    parked.assert_nothing_waits()


def test_14_13_a_rebuild_reads_everything_again_and_forgets_what_was_parked(parked: Parked) -> None:
    parked.partner.refused = set()
    parked.partner.has.clear()
    parked.shop.app.processors.operator.reset("orders", None, actor="anne")
    parked.run()
    assert parked.partner.of("a") == ["a1", "a2", "a3", "a4"]
    parked.assert_nothing_waits()


def test_14_13_a_processor_that_is_forgotten_leaves_no_parked_key(sqlite_shop: Shop) -> None:
    parked = Parked(sqlite_shop)
    parked.partner.refused = {"a1"}
    parked.append("a1", "a2")
    parked.run()
    sqlite_shop.app.processors.operator.forget("orders", actor="anne")
    assert sqlite_shop.execute("SELECT * FROM holdfast_processor_parked") == []


def test_14_13_another_on_error_later_lets_those_that_wait_follow_all_the_same(sqlite_shop: Shop) -> None:
    parked = Parked(sqlite_shop)
    parked.partner.refused = {"a1"}
    parked.append("a1", "a2")
    parked.run()
    changed = sqlite_shop.another()
    partner = Partner()
    changed.app.relay("orders", partner, on_error="dead_letter")
    parked.append("a3")
    changed.run("orders")
    assert partner.has == []
    parked.retry("a1")
    changed.run("orders")
    assert partner.has == ["a1", "a2", "a3"]
    changed.provider.dispose_all()


def test_14_13_a_transactional_processor_parks_keys_too_and_keeps_the_other_effects(shop: Shop) -> None:
    refused = {2}

    @shop.app.processor("totals", on_error="park", retry_policy=AT_ONCE)
    def totals(messages: list[Message], context: ProcessorContext) -> None:
        write_effects(messages, context)
        if any(message.data["amount"] in refused for message in messages):
            raise ValueError("no such account")

    for amount, key in ((1, "a"), (2, "b"), (3, "a"), (4, "b"), (5, "c")):
        shop.append(amount, key=key)
    shop.run()
    assert sorted(shop.effects()) == [1, 3, 5]
    shop.append(6, key="b")
    shop.append(7, key="a")
    shop.run()
    assert sorted(shop.effects()) == [1, 3, 5, 7]
    refused.clear()
    wanted = LetterFilter(engine="processor:totals", error="no such account")
    assert [batch.count for batch in shop.app.redrive.retry_all(wanted, "anne")] == [1]
    shop.run()
    assert sorted(shop.effects()) == [1, 2, 3, 4, 5, 6, 7]
    assert shop.execute("SELECT * FROM holdfast_processor_parked") == []
