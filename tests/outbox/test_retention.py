"""Retention deletes what is old and what every registered processor has passed, and nothing else [OUTBOX-7]."""

from __future__ import annotations

from datetime import timedelta

import pytest

from holdfast import Holdfast
from holdfast.core.clock import SystemClock
from holdfast.outbox.housekeeping import OutboxHousekeeping, prune
from holdfast.outbox.message import Message
from tests.outbox.shops import Shop

EVERYTHING = timedelta(seconds=-60)  # also what was appended just now


def quiet(messages: list[Message]) -> None:
    """Do nothing."""


def pruned(shop: Shop, retention: timedelta = EVERYTHING) -> int:
    return prune(shop.app.processors.engine, shop.app.processors.checkpoints, retention)


def left(shop: Shop) -> int:
    return int(shop.execute("SELECT count(*) AS n FROM holdfast_outbox")[0]["n"])


def test_what_a_registered_processor_has_not_passed_is_kept(shop: Shop) -> None:
    shop.append_each(1, 2, 3)
    shop.app.processor("fast")(quiet)
    shop.app.processor("slow", batch_size=1)(quiet)
    shop.run("fast")
    slow = shop.app.processors.get("slow")
    assert pruned(shop) == 0
    runner = shop.app.processors.runner(slow, slow.partition_ids[0])
    with runner.leased() as lease:
        runner.process_batch(lease)
    assert pruned(shop) == 1
    shop.run("slow")
    assert pruned(shop) == 2
    assert left(shop) == 0


def test_what_is_young_is_kept(shop: Shop) -> None:
    shop.append(1)
    shop.app.processor("fast")(quiet)
    shop.run("fast")
    assert pruned(shop, timedelta(days=1)) == 0
    assert left(shop) == 1


def test_a_retired_version_does_not_hold_messages_back(shop: Shop) -> None:
    shop.append(1)
    shop.app.processor("totals", version=1)(quiet)
    shop.app.processor("totals", version=2)(quiet)
    shop.run("totals", 2)
    assert pruned(shop) == 0
    shop.app.processors.operator.promote("totals", actor="anne", force=True)
    assert pruned(shop) == 1


def test_every_partition_counts(shop: Shop) -> None:
    shop.append_each(*range(8))
    shop.app.processor("totals", partitions=2)(quiet)
    shop.app.processors.register()
    totals = shop.app.processors.get("totals")
    shop.number()
    runner = shop.app.processors.runner(totals, totals.partition_ids[0])
    with runner.leased() as lease:
        runner.process_batch(lease)
    assert pruned(shop) == 0
    shop.run("totals")
    assert pruned(shop) == 8


def test_by_default_nothing_is_deleted(sqlite_shop: Shop) -> None:
    sqlite_shop.append(1)
    sqlite_shop.app.processor("fast")(quiet)
    sqlite_shop.run("fast")
    processors = sqlite_shop.app.processors
    assert OutboxHousekeeping(processors.engine, processors.checkpoints, SystemClock()).chores() == []
    [chore] = OutboxHousekeeping(processors.engine, processors.checkpoints, SystemClock(), EVERYTHING).chores()
    assert chore.task() is None, "there is no more, so it is due again at its time"
    assert left(sqlite_shop) == 0


def test_the_application_says_how_long_messages_are_kept(sqlite_url: str) -> None:
    app = Holdfast(sqlite_url, outbox_retention=timedelta(days=30))
    assert app.processors._retention == timedelta(days=30)


@pytest.mark.component("postgres18")
def test_a_processor_in_the_order_of_positions_counts_too(postgres_shop: Shop) -> None:
    postgres_shop.append_each(1, 2, 3)
    postgres_shop.app.processor("by-transaction")(quiet)
    postgres_shop.app.processor("by-position", order="position", batch_size=1)(quiet)
    postgres_shop.run("by-transaction")
    by_position = postgres_shop.app.processors.get("by-position")
    runner = postgres_shop.app.processors.runner(by_position, by_position.partition_ids[0])
    with runner.leased() as lease:
        while not postgres_shop.place("by-position").checkpoint:
            runner.process_batch(lease)
    assert pruned(postgres_shop) == 1
