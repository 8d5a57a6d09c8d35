"""The event loop goes on while the database keeps a handler waiting; a cancelled one leaves nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
from sqlalchemy import text

from holdfast import DbBindings, DbConfig, EngineProvider
from tests.binding.databases import Database
from tests.decorator.polling import effects, make_orders, place, polling, state_in

db = DbBindings()
TICKS = 100
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"

pytestmark = pytest.mark.timeout(60)  # a loop that is blocked would wait for what only it can end


class Lock:
    """A lock that the test holds, so that a statement of the handler cannot end."""

    def __init__(self, database: Database, statement: str) -> None:
        self._database = database
        self._holder = database.outside.connect()
        self._holder.execute(text(statement))

    async def is_waited_for(self, count: int = 1) -> None:
        """Return when the database says that somebody waits."""
        while await asyncio.to_thread(self._database.value, WAITING) < count:
            pass

    def release(self) -> None:
        """Let whoever waits go on."""
        self._holder.rollback()
        self._holder.close()


@contextmanager
def held(database: Database, statement: str) -> Iterator[Lock]:
    lock = Lock(database, statement)
    try:
        yield lock
    finally:
        lock.release()


def lock_table(name: str) -> str:
    return f"LOCK TABLE {name} IN ACCESS EXCLUSIVE MODE"


@asynccontextmanager
async def ticking() -> AsyncIterator[Callable[[], Any]]:
    """Count the turns of the loop; the yielded function waits for as many more as asked."""
    turns = 0

    async def tick() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async def more(count: int = TICKS) -> None:
        wanted = turns + count
        while turns < wanted:
            await asyncio.sleep(0)

    ticker = asyncio.create_task(tick())
    try:
        yield more
    finally:
        ticker.cancel()


@pytest.fixture
def orders(postgres: Database) -> Database:
    make_orders(postgres)
    place(postgres, 1, 2)
    return postgres


def _input(orders: Database) -> Any:
    @db.input("found", url=orders.url, query="SELECT id FROM orders", engine_provider=orders.provider)
    async def handler(found: Any) -> None:
        assert len(found) == 2

    return handler


def _reader(orders: Database) -> Any:
    @db.inject_reader("reader", url=orders.url, table="orders", engine_provider=orders.provider)
    async def handler(reader: Any) -> None:
        assert await reader.get(pk={"id": 1}) == {"id": 1, "status": "new"}

    return handler


def _stream(orders: Database) -> Any:
    @db.inject_reader("reader", url=orders.url, engine_provider=orders.provider)
    async def handler(reader: Any) -> None:
        assert len([row async for row in reader.stream("SELECT id FROM orders")]) == 2

    return handler


def _writer(orders: Database) -> Any:
    @db.inject_writer("writer", url=orders.url, table="orders", engine_provider=orders.provider)
    async def handler(writer: Any) -> None:
        await writer.update(data={"status": "paid"}, pk={"id": 1})

    return handler


def _transaction(orders: Database) -> Any:
    @db.inject_writer("writer", url=orders.url, table="orders", engine_provider=orders.provider)
    async def handler(writer: Any) -> None:
        async with writer.transaction() as tx:
            await tx.update(data={"status": "paid"}, pk={"id": 1})
            await tx.update(data={"status": "paid"}, pk={"id": 2})

    return handler


def _output(orders: Database) -> Any:
    @db.output(
        "out",
        url=orders.url,
        table="orders",
        action="upsert",
        conflict_columns=["id"],
        engine_provider=orders.provider,
    )
    async def handler(out: Any) -> None:
        await out.set([{"id": 1, "status": "paid"}, {"id": 3, "status": "new"}])

    return handler


def _trigger(orders: Database) -> Any:
    @db.trigger(arg_name="events", **polling(orders))
    async def handler(events: Any) -> None:
        assert len(events) == 2

    return handler


@pytest.mark.parametrize("make", [_input, _reader, _stream, _writer, _transaction, _output, _trigger])
def test_the_loop_ticks_while_the_database_does_not_answer(orders: Database, make: Callable[[Database], Any]) -> None:
    handler = make(orders)
    orders.writer("orders").update(
        data={"status": "new"}, pk={"id": 1}
    )  # the table is known: the lock meets a statement

    async def watch() -> None:
        async with ticking() as more_ticks:
            with held(orders, lock_table("orders")) as lock:
                call = asyncio.create_task(handler())
                await lock.is_waited_for()
                await more_ticks()
                assert not call.done(), "it was still waiting for the database"
            await call

    asyncio.run(watch())
    assert orders.connections_in_use == 0


def test_the_loop_ticks_while_a_handlers_own_transaction_waits(orders: Database) -> None:
    app, state = state_in(orders)

    @db.trigger(arg_name="events", **polling(orders, state))
    async def handler(events: Any, context: Any) -> None:
        insert = text("INSERT INTO effects (order_id) VALUES (:id)")
        await context.transaction.execute(insert, [{"id": event.pk["id"]} for event in events])

    async def watch() -> None:
        async with ticking() as more_ticks:
            with held(orders, lock_table("effects")) as lock:
                call = asyncio.create_task(handler())
                await lock.is_waited_for()
                await more_ticks()
                assert not call.done()
            await call

    asyncio.run(watch())
    assert effects(orders) == [1, 2]
    app._provider.dispose_all()


def test_cancelled_inside_a_transaction_the_handler_ends_when_it_is_rolled_back(orders: Database) -> None:
    @db.inject_writer("writer", url=orders.url, table="effects", engine_provider=orders.provider)
    async def handler(writer: Any) -> None:
        async with writer.transaction() as tx:
            await tx.insert(data={"order_id": 1})
            held_by_test.set()
            await locked.wait()
            await tx.insert(data={"order_id": 2})
            pytest.fail("was cancelled before")

    locked, held_by_test = asyncio.Event(), asyncio.Event()

    async def watch() -> None:
        async with ticking() as more_ticks:
            call = asyncio.create_task(handler())
            await held_by_test.wait()
            # the rival waits for nothing: it holds the key that the handler is going to insert
            with held(orders, "INSERT INTO effects (order_id) VALUES (2)") as lock:
                locked.set()
                await lock.is_waited_for()
                for _ in range(3):  # once is not enough for the impatient
                    call.cancel()
                    await more_ticks()
                assert not call.done(), "the connection is not given back while a statement runs on it"
            with pytest.raises(asyncio.CancelledError):
                await call

    asyncio.run(watch())
    assert effects(orders) == []
    assert orders.connections_in_use == 0


def test_cancelled_while_it_waits_for_a_connection_a_transaction_leaves_none_open(orders: Database) -> None:
    provider = EngineProvider()
    config = DbConfig(connection_url=orders.url, pool_size=1, engine_kwargs={"max_overflow": 0})

    @db.inject_writer("writer", db_config=config, table="effects", engine_provider=provider)
    async def handler(writer: Any) -> None:
        await writer.insert(data={"order_id": 1})
        with provider.get_engine(config).connect():
            entering = asyncio.create_task(enter(writer))
            async with ticking() as more_ticks:
                await more_ticks()
                entering.cancel()
                await more_ticks()
                assert not entering.done()
        with pytest.raises(asyncio.CancelledError):
            await entering
        await writer.insert(data={"order_id": 2})

    async def enter(writer: Any) -> None:
        async with writer.transaction():
            pytest.fail("was cancelled before")

    asyncio.run(handler())
    assert effects(orders) == [1, 2]
    assert provider.get_engine(config).pool.checkedout() == 0  # type: ignore[attr-defined]  # a QueuePool has it
    provider.dispose_all()


@pytest.mark.parametrize("make", [_input, _reader, _stream, _output])
def test_a_cancelled_handler_leaves_no_connection_behind(orders: Database, make: Callable[[Database], Any]) -> None:
    handler = make(orders)
    orders.writer("orders").update(data={"status": "new"}, pk={"id": 1})

    async def watch() -> None:
        with held(orders, lock_table("orders")) as lock:
            call = asyncio.create_task(handler())
            await lock.is_waited_for()
            call.cancel()
            async with ticking() as more_ticks:
                await more_ticks()
        with pytest.raises(asyncio.CancelledError):
            await call
        while orders.connections_in_use:  # its thread gives it back when the statement has ended
            await asyncio.sleep(0)

    asyncio.run(watch())
