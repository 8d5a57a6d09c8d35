"""Ways in which rows used to slip through: generators, emptied lists, equal keys, endless passes, late transactions."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.engine import Connection

from holdfast import (
    ConfigurationError,
    HandlerError,
    Holdfast,
    PollContext,
    RetryPolicy,
    RowChange,
    SourceConfigurationError,
    SqlAlchemySource,
)
from holdfast.core.types import JsonObject
from tests.components.processes import wait_until
from tests.trigger.shop import RECORD_EFFECT, Shop, effect_rows, order_ids


def generating(changes: list[RowChange]) -> Iterator[RowChange]:
    yield from changes


async def generating_async(changes: list[RowChange]) -> AsyncIterator[RowChange]:
    for change in changes:
        yield change


@pytest.mark.parametrize("handler", [generating, generating_async])
def test_a_handler_with_a_yield_is_refused(sqlite_shop: Shop, handler: Any) -> None:
    sqlite_shop.hf.trigger("orders", cursor="updated_at")(handler)
    with pytest.raises(ConfigurationError, match="generator"):
        sqlite_shop.hf.runner("orders")


def test_a_generator_that_a_handler_returns_is_a_failure(sqlite_shop: Shop) -> None:
    sqlite_shop.hf.trigger("orders", cursor="updated_at")(lambda changes: generating(changes))
    sqlite_shop.place([1])
    runner = sqlite_shop.hf.runner("orders")
    with pytest.raises(HandlerError, match="generator"):
        wait_until(lambda: runner.tick() and False, "the delivery to fail")


def test_a_handler_that_empties_its_list_gets_the_whole_batch_again(sqlite_shop: Shop) -> None:
    handled: list[int] = []

    @sqlite_shop.hf.trigger(
        "orders", cursor="updated_at", retry_policy=RetryPolicy(max_retries=1, base_delay_seconds=0.001)
    )
    def ship(changes: list[RowChange], context: PollContext) -> None:
        while changes:
            change = changes.pop(0)
            assert change.after is not None
            change.after.clear()
            if context.attempt == 1 and change.pk["id"] == 2:
                raise RuntimeError("no stock")
            handled.append(int(str(change.pk["id"])))

    sqlite_shop.place([1, 2, 3])
    runner = sqlite_shop.hf.runner("orders")
    wait_until(lambda: runner.tick() and handled[-1:] == [3], "the second attempt")
    assert handled == [1, 1, 2, 3]


def test_a_handler_that_exits_fails_its_batch_and_not_its_worker(sqlite_shop: Shop) -> None:
    attempts: list[int] = []

    @sqlite_shop.hf.trigger("orders", cursor="updated_at", poll_seconds=0.01)
    def ship(changes: list[RowChange]) -> None:
        attempts.append(len(changes))
        if len(attempts) == 1:
            raise SystemExit(3)

    sqlite_shop.place([1])
    thread = threading.Thread(target=sqlite_shop.hf.run)
    thread.start()
    wait_until(lambda: len(attempts) >= 2, "the batch to come again")
    sqlite_shop.hf.stop()
    thread.join(timeout=30)
    assert not thread.is_alive()


def test_a_handler_that_outlived_the_drain_does_not_start_again(sqlite_shop: Shop) -> None:
    inside, leave, calls = threading.Event(), threading.Event(), []

    @sqlite_shop.hf.trigger("orders", cursor="updated_at", poll_seconds=0.01, batch_size=1)
    def ship(changes: list[RowChange]) -> None:
        calls.append(order_ids(changes))
        inside.set()
        leave.wait(30)

    sqlite_shop.place([1, 2])
    results: list[bool] = []
    thread = threading.Thread(target=lambda: results.append(sqlite_shop.hf.run(drain_seconds=0.0)))
    thread.start()
    assert inside.wait(30)
    sqlite_shop.hf.stop()
    thread.join(timeout=30)
    leave.set()
    left = [each for each in threading.enumerate() if each.name == "trigger-orders"]
    for each in left:
        each.join(timeout=30)
    assert results == [False]
    assert calls == [[1]]


def test_the_transaction_cannot_be_used_after_its_delivery(sqlite_shop: Shop) -> None:
    kept: list[PollContext] = []

    @sqlite_shop.hf.trigger("orders", cursor="updated_at")
    def ship(changes: list[RowChange], context: PollContext) -> None:
        kept.append(context)
        context.transaction.execute(RECORD_EFFECT, effect_rows(changes, context))

    sqlite_shop.place([1])
    runner = sqlite_shop.hf.runner("orders")
    wait_until(lambda: runner.tick() or sqlite_shop.effects(), "the delivery")
    with pytest.raises(HandlerError, match="after its delivery"):
        _ = kept[0].transaction
    sqlite_shop.place([2])
    assert sqlite_shop.effects() == [1], "the database stayed locked"


def test_async_handlers_leave_nothing_behind_on_a_lease_held_for_long(sqlite_shop: Shop) -> None:
    @sqlite_shop.hf.trigger("orders", cursor="updated_at", batch_size=1)
    async def ship(changes: list[RowChange]) -> None:
        await asyncio.sleep(0)

    sqlite_shop.place(range(20))
    runner = sqlite_shop.hf.runner("orders")
    with runner.leased() as lease:
        delivered = 0

        def more() -> bool:
            nonlocal delivered
            delivered += runner.process_batch(lease).delivered
            return delivered == 20

        wait_until(more, "twenty batches")
        assert lease._on_lost == []


def test_an_async_handler_works_in_a_forked_process(sqlite_shop: Shop) -> None:
    async def ship(changes: list[RowChange]) -> None:
        await asyncio.sleep(0)

    sqlite_shop.hf.trigger("orders", cursor="updated_at", batch_size=1)(ship)
    sqlite_shop.place([1, 2])
    runner = sqlite_shop.hf.runner("orders")
    wait_until(runner.tick, "the parent's loop to be in use")
    sqlite_shop.place([3])
    sqlite_shop.close()
    child = os.fork()
    if child == 0:  # pragma: no cover - runs in the child
        try:
            wait_until(runner.tick, "a delivery in the child", 20)
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def fill(connection: Connection, rows: list[tuple[int | None, int | None]]) -> None:
    connection.execute(text("CREATE TABLE items (at INTEGER, part INTEGER)"))
    connection.execute(
        text("INSERT INTO items (at, part) VALUES (:at, :part)"), [{"at": at, "part": part} for at, part in rows]
    )


@pytest.mark.parametrize("database", ["sqlite_url", "postgres_url", "mariadb_url"])
def test_keys_that_do_not_tell_rows_apart_are_refused(request: pytest.FixtureRequest, database: str) -> None:
    hf = Holdfast(request.getfixturevalue(database))
    with hf.database.begin() as connection:
        fill(connection, [(5, 1), (5, 1)])
    hf.migrate()
    hf.trigger("items", cursor="at", key="part", horizon="none")(order_ids)
    with pytest.raises(SourceConfigurationError, match="unique"):
        hf.validate()
    hf._provider.dispose_all()


@pytest.mark.parametrize("database", ["sqlite_url", "postgres_url", "mariadb_url"])
def test_a_null_in_the_key_is_refused(request: pytest.FixtureRequest, database: str) -> None:
    hf = Holdfast(request.getfixturevalue(database))
    with hf.database.begin() as connection:
        fill(connection, [(5, 1), (5, None), (6, 1)])
        connection.execute(text("CREATE UNIQUE INDEX items_key ON items (at, part)"))
    hf.migrate()
    hf.trigger("items", cursor="at", key="part", horizon="none")(order_ids)
    with pytest.raises(SourceConfigurationError, match="NULL in its cursor 'at' or key"):
        hf.validate()
    hf._provider.dispose_all()


def test_the_identity_of_a_view_is_refused(postgres_url: str) -> None:
    """The locks of those who write stand on the table behind it, so a late commit would not be noticed."""
    hf = Holdfast(postgres_url)
    with hf.database.begin() as connection:
        connection.execute(text("CREATE TABLE items (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY)"))
        connection.execute(text("CREATE VIEW shown AS SELECT id FROM items"))
    hf.migrate()
    hf.trigger("shown", cursor="id", key="id", horizon="identity")(order_ids)
    with pytest.raises(SourceConfigurationError, match="not a plain or partitioned table"):
        hf.validate()
    hf._provider.dispose_all()


@pytest.mark.parametrize("where", ["1 = 1) OR (1 = 1", "id > 0 -- all", "name = 'it"])
def test_a_filter_cannot_end_the_condition_it_stands_in(sqlite_shop: Shop, where: str) -> None:
    if where.endswith("-- all"):
        sqlite_shop.hf.trigger("orders", cursor="updated_at", where=where)(order_ids)
        sqlite_shop.hf.validate()
        return
    sqlite_shop.hf.trigger("orders", cursor="updated_at", where=where)(order_ids)
    with pytest.raises(SourceConfigurationError, match="unbalanced"):
        sqlite_shop.hf.validate()


@pytest.mark.parametrize(
    "setting",
    [
        {"batch_size": 0},
        {"batch_size": "many"},
        {"lease_seconds": None},
        {"lease_seconds": 0},
        {"poll_seconds": -1},
        {"lookback": -5},
        {"lookback_limit": 0},
        {"heartbeat_seconds": 20, "lease_seconds": 30},
    ],
)
def test_a_number_that_makes_no_sense_is_refused_when_it_is_declared(sqlite_url: str, setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Holdfast(sqlite_url).trigger("orders", cursor="updated_at", **setting)


def number_source(sqlite_shop: Shop, **settings: Any) -> SqlAlchemySource:
    with sqlite_shop.engine.begin() as connection:
        connection.execute(text("CREATE TABLE numbers (n INTEGER NOT NULL, id INTEGER PRIMARY KEY)"))
    return SqlAlchemySource(
        url=str(sqlite_shop.engine.url),
        table="numbers",
        cursor_column="n",
        pk_columns=["id"],
        engine_provider=sqlite_shop.hf._provider,
        **settings,
    )


def add(shop: Shop, rows: list[tuple[int, int]]) -> None:
    with shop.engine.begin() as connection:
        connection.execute(
            text("INSERT INTO numbers (n, id) VALUES (:n, :id)"), [{"n": n, "id": each} for n, each in rows]
        )


def read_all(source: SqlAlchemySource, checkpoint: JsonObject, limit: int) -> tuple[list[int], JsonObject]:
    seen: list[int] = []
    for _ in range(1000):
        found = source.fetch_changes(checkpoint, limit)
        seen += [int(str(record["id"])) for record in found.records]
        checkpoint = found.next_checkpoint or checkpoint
        if found.caught_up and not found.records:
            return seen, checkpoint
    raise AssertionError("the passes do not end")


@pytest.mark.parametrize("limit", [1, 3, 10])
def test_a_lookback_larger_than_a_batch_comes_to_an_end(sqlite_shop: Shop, limit: int) -> None:
    source = number_source(sqlite_shop, lookback=1000, horizon="none")
    add(sqlite_shop, [(n, n) for n in range(10)])
    seen, checkpoint = read_all(source, {}, limit)
    assert seen == list(range(10))
    add(sqlite_shop, [(5, 100)])
    late, checkpoint = read_all(source, checkpoint, limit)
    assert late == [100], "a late row inside the window was missed or others were repeated"
    assert read_all(source, checkpoint, limit)[0] == []


def test_what_a_lookback_remembers_is_bounded_even_when_all_cursors_are_equal(
    sqlite_shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    source = number_source(sqlite_shop, lookback=10, lookback_limit=5, horizon="none")
    add(sqlite_shop, [(7, each) for each in range(50)])
    seen, checkpoint = read_all(source, {}, 4)
    assert seen == list(range(50)), "rows were repeated or skipped"
    assert len(checkpoint["lookback"]["delivered"]) <= 5
    assert "lookback" in caplog.text
    add(sqlite_shop, [(8, 1000), (7, 2000)])
    assert read_all(source, checkpoint, 4)[0] == [2000, 1000]
