"""``trigger``: changes as an argument, for plain and async handlers, alone and with something to write to."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import text

from holdfast import (
    ConfigurationError,
    DbBindings,
    DbOut,
    DbWriter,
    HandlerError,
    PollContext,
    RowChange,
)
from holdfast.lease.stores.memory import MemoryDocumentStore
from tests.binding.databases import Database
from tests.decorator.polling import effects, make_orders, place, polling, state_in

db = DbBindings()


@pytest.fixture
def orders(database: Database) -> Database:
    make_orders(database)
    return database


def ids(events: list[RowChange]) -> list[int]:
    return [int(str(event.pk["id"])) for event in events]


def test_changes_come_as_an_argument_and_once(orders: Database) -> None:
    calls: list[tuple[Any, list[int], str]] = []

    @db.trigger(arg_name="events", **polling(orders))
    def ship(timer: Any, events: list[RowChange], context: PollContext) -> None:
        calls.append((timer, ids(events), context.poller_name))

    place(orders, 1, 2)
    ship("tick 1")
    ship(timer="tick 2")  # nothing changed, so the handler is not called
    place(orders, 3)
    ship(timer="tick 3")
    assert calls == [("tick 1", [1, 2], "ship"), ("tick 3", [3], "ship")]


def test_a_handler_need_not_take_the_context_or_the_timer(orders: Database) -> None:
    seen: list[int] = []

    @db.trigger(arg_name="events", name="shipping", **polling(orders))
    def ship(events: list[RowChange]) -> None:
        seen.extend(ids(events))

    place(orders, 1)
    ship()
    assert seen == [1]


def test_an_async_handler_runs_on_the_callers_loop(orders: Database) -> None:
    seen: list[tuple[list[int], bool, bool]] = []

    async def calls() -> None:
        loop, thread = asyncio.get_running_loop(), threading.current_thread()

        @db.trigger(arg_name="events", **polling(orders))
        async def ship(timer: Any, events: list[RowChange], context: PollContext) -> None:
            await asyncio.to_thread(lambda: None)  # it may await what it likes
            seen.append((ids(events), asyncio.get_running_loop() is loop, threading.current_thread() is thread))

        place(orders, 1, 2)
        assert inspect.iscoroutinefunction(ship)
        await ship("tick")
        await ship(timer="tick")

    asyncio.run(calls())
    assert seen == [([1, 2], True, True)]


@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
def test_a_failed_handler_gets_its_batch_again(orders: Database, is_async: bool) -> None:
    seen: list[list[int]] = []

    def note(events: list[RowChange]) -> None:
        seen.append(ids(events))
        if len(seen) == 1:
            raise KeyError("first")

    async def note_later(timer: Any, events: list[RowChange]) -> None:
        note(events)

    def note_now(timer: Any, events: list[RowChange]) -> None:
        note(events)

    def call() -> None:
        asyncio.run(ship("tick")) if is_async else ship("tick")

    ship: Any = db.trigger(arg_name="events", name="ship", **polling(orders))(note_later if is_async else note_now)
    place(orders, 1, 2)
    with pytest.raises(HandlerError, match="first") as caught:
        call()
    assert isinstance(caught.value.__cause__, KeyError)
    call()
    assert seen == [[1, 2], [1, 2]]


@pytest.mark.parametrize("trigger_is_outside", [True, False], ids=["trigger above output", "output above trigger"])
def test_with_output_what_is_set_is_written(orders: Database, trigger_is_outside: bool) -> None:
    def ship(timer: Any, events: list[RowChange], out: DbOut) -> None:
        out.set([{"order_id": number, "note": timer} for number in ids(events)])

    async def ship_async(timer: Any, events: list[RowChange], out: Any) -> None:
        await out.set([{"order_id": number, "note": timer} for number in ids(events)])

    output = db.output("out", url=orders.url, table="effects", engine_provider=orders.provider)
    for number, handler in enumerate((ship, ship_async)):
        trigger = db.trigger(arg_name="events", **polling(orders))
        decorated: Any = trigger(output(handler)) if trigger_is_outside else output(trigger(handler))
        place(orders, number * 10 + 1, number * 10 + 2)
        orders.execute("DELETE FROM effects")
        asyncio.run(decorated("t")) if number else decorated("t")
        assert effects(orders) == ([1, 2] if number == 0 else [1, 2, 11, 12])


@pytest.mark.parametrize("trigger_is_outside", [True, False], ids=["trigger above writer", "writer above trigger"])
def test_with_inject_writer_a_transaction_can_be_had(orders: Database, trigger_is_outside: bool) -> None:
    def ship(timer: Any, events: list[RowChange], writer: DbWriter) -> None:
        with writer.transaction():
            writer.insert_many(rows=[{"order_id": number} for number in ids(events)])

    async def ship_async(timer: Any, events: list[RowChange], writer: Any) -> None:
        async with writer.transaction() as tx:
            await tx.insert_many(rows=[{"order_id": number} for number in ids(events)])

    inject = db.inject_writer("writer", url=orders.url, table="effects", engine_provider=orders.provider)
    for handler in (ship, ship_async):
        trigger = db.trigger(arg_name="events", **polling(orders))
        decorated: Any = trigger(inject(handler)) if trigger_is_outside else inject(trigger(handler))
        orders.execute("DELETE FROM orders")
        orders.execute("DELETE FROM effects")
        place(orders, 1, 2)
        asyncio.run(decorated("t")) if handler is ship_async else decorated("t")
        assert effects(orders) == [1, 2]


def test_an_async_handler_awaits_its_transaction_which_commits_with_the_checkpoint(
    orders: Database, request: pytest.FixtureRequest
) -> None:
    app, state = state_in(orders)
    tries: list[int] = []

    @db.trigger(arg_name="events", **polling(orders, state))
    async def ship(timer: Any, events: list[RowChange], context: PollContext) -> None:
        insert = text("INSERT INTO effects (order_id) VALUES (:id)")
        await context.transaction.execute(insert, [{"id": number} for number in ids(events)])
        found = await context.transaction.execute(text("SELECT count(*) FROM effects"))
        assert found.scalar() == 2
        tries.append(1)
        if len(tries) == 1:
            raise KeyError("after the write")

    place(orders, 1, 2)
    with pytest.raises(HandlerError, match="after the write"):
        asyncio.run(ship("tick"))
    assert effects(orders) == [], "what was written went with the checkpoint"
    asyncio.run(ship("tick"))
    asyncio.run(ship("tick"))
    assert effects(orders) == [1, 2]
    assert len(tries) == 2
    app._provider.dispose_all()


def test_async_triggers_that_take_every_thread_of_the_loop_do_not_starve_their_own_handlers(orders: Database) -> None:
    """A tick waits on one of the loop's threads for its handler; what the handler waits for must run elsewhere."""
    shippers = []
    for number in range(3):

        @db.trigger(arg_name="events", name=f"ship_{number}", **polling(orders))
        @db.output(
            "out",
            url=orders.url,
            table="effects",
            action="upsert",
            conflict_columns=["order_id"],
            engine_provider=orders.provider,
        )
        @db.input("status", url=orders.url, table="orders", pk={"id": 1}, engine_provider=orders.provider)
        async def ship(timer: Any, events: list[RowChange], status: Any, out: Any, number: int = number) -> None:
            await out.set([{"order_id": number * 10 + each, "note": status["status"]} for each in ids(events)])

        shippers.append(ship)

    async def all_at_once() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(3))
        await asyncio.wait_for(asyncio.gather(*(ship("tick") for ship in shippers)), 60)

    place(orders, 1, 2)
    asyncio.run(all_at_once())
    assert effects(orders) == [1, 2, 11, 12, 21, 22]


def test_a_handler_that_would_run_nothing_is_refused_when_the_decorator_is_applied(sqlite: Database) -> None:
    def ship(timer: Any, events: Any, out: Any) -> Iterator[Any]:
        yield from events

    async def ship_async(timer: Any, events: Any, out: Any) -> AsyncIterator[Any]:
        for each in events:
            yield each

    output = db.output("out", url=sqlite.url, table="effects")
    for handler in (ship, ship_async, output(ship), output(ship_async)):
        with pytest.raises(ConfigurationError, match=r"'ship\w*' has a yield, so that calling it runs nothing"):
            db.trigger(arg_name="events", **polling(sqlite))(handler)


def test_wrong_settings_are_refused_when_the_decorator_is_applied(sqlite: Database) -> None:
    def ship(timer: Any, events: Any) -> None: ...

    for settings, kind, said in (
        ({"batch_size": 0}, ValueError, "batch_size"),
        ({"max_batches_per_tick": 0}, ValueError, "max_batches_per_tick"),
        ({"lease_ttl_seconds": 0}, ValueError, "lease_ttl_seconds"),
        ({"name": "../escape"}, ConfigurationError, "storage path"),
        ({"model": int}, ConfigurationError, "trigger: model must be"),
    ):
        with pytest.raises(kind, match=said):
            db.trigger(arg_name="events", **(polling(sqlite) | settings))(ship)
    with pytest.raises(ConfigurationError, match=r"'ship' has no parameter 'changes' to fill\. It has: timer, events"):
        db.trigger(arg_name="changes", **polling(sqlite))(ship)


def test_two_functions_cannot_have_one_name_on_one_store(orders: Database) -> None:
    """They would share a checkpoint, and each would miss what the other got."""
    shared = polling(orders)

    @db.trigger(arg_name="events", name="orders", **shared)
    def ship(timer: Any, events: list[RowChange]) -> None:
        """Stands for the first."""

    def bill(timer: Any, events: list[RowChange]) -> None:
        """Stands for the second."""

    with pytest.raises(ConfigurationError, match="'ship' and 'bill' are both called 'orders' on one checkpoint store"):
        db.trigger(arg_name="events", name="orders", **shared)(bill)
    db.trigger(arg_name="events", name="bills", **shared)(bill)
    db.trigger(arg_name="events", name="orders", **polling(orders))(bill)  # another store has other checkpoints


def test_a_function_that_is_imported_again_keeps_its_name(orders: Database) -> None:
    shared = polling(orders)

    def import_module() -> Any:
        @db.trigger(arg_name="events", **shared)
        def ship(timer: Any, events: list[RowChange]) -> None:
            """Stands for the module's function."""

        return ship

    import_module()
    import_module()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"batch_size": "10"}, "batch_size must be a number, not '10'"),
        ({"max_batches_per_tick": None}, "max_batches_per_tick must be a number"),
        ({"lease_ttl_seconds": "120"}, "lease_ttl_seconds must be a number"),
        ({"retry_policy": 3}, r"retry_policy must be a RetryPolicy, not 3\. Write for example"),
        ({"source": None}, "source must be a source of changes, such as SqlAlchemySource, not NoneType"),
        ({"checkpoint_store": None}, "checkpoint_store must be a state store, not NoneType. Pass a Blob"),
        ({"checkpoint_store": MemoryDocumentStore()}, r"not MemoryDocumentStore\. Wrap it: StateStore\("),
    ],
)
def test_a_wrong_kind_of_setting_is_told_when_the_trigger_is_made(
    sqlite: Database, settings: dict[str, Any], said: str
) -> None:
    make_orders(sqlite)
    with pytest.raises(ConfigurationError, match=said):
        db.trigger(arg_name="events", **(polling(sqlite) | settings))(lambda timer, events: None)
