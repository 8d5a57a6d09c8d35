"""An async handler that forgets an await fails, because what it called was never done."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import AsyncDbOut, AsyncDbReader, AsyncDbWriter, DbBindings, HandlerError, RowChange
from tests.binding.databases import Database
from tests.decorator.polling import effects, make_orders, place, polling

db = DbBindings()


@pytest.fixture
def orders(sqlite: Database) -> Database:
    make_orders(sqlite)
    return sqlite


def written_to(database: Database) -> dict[str, Any]:
    return {"url": database.url, "table": "effects", "engine_provider": database.provider}


def test_under_a_trigger_the_batch_comes_again(orders: Database) -> None:
    seen: list[int] = []

    @db.trigger(arg_name="events", **polling(orders))
    @db.output("out", **written_to(orders))
    async def ship(timer: Any, events: list[RowChange], out: AsyncDbOut) -> None:
        seen.append(len(events))
        writing = out.set([{"order_id": event.pk["id"]} for event in events])
        if len(seen) > 1:
            await writing

    place(orders, 1, 2)
    with pytest.raises(HandlerError, match=r"out\.set\(…\) was not awaited, .* Write: await out\.set\(…\)"):
        asyncio.run(ship(timer=None))
    assert effects(orders) == []
    asyncio.run(ship(timer=None))
    assert (seen, effects(orders)) == ([2, 2], [1, 2])


def test_a_forgotten_write_or_read_is_an_error_without_a_trigger_too(orders: Database) -> None:
    @db.inject_writer("writer", **written_to(orders))
    async def write(req: Any, writer: AsyncDbWriter) -> None:
        writer.insert(data={"order_id": 1})  # type: ignore[unused-coroutine]  # what the test is about

    @db.inject_reader("reader", url=orders.url, engine_provider=orders.provider)
    async def read(req: Any, reader: AsyncDbReader) -> None:
        reader.query("SELECT 1 AS one")  # type: ignore[unused-coroutine]  # what the test is about

    with pytest.raises(HandlerError, match=r"writer\.insert\(…\) was not awaited"):
        asyncio.run(write(req=None))
    with pytest.raises(HandlerError, match=r"reader\.query\(…\) was not awaited"):
        asyncio.run(read(req=None))
    assert effects(orders) == []


def test_a_task_that_nobody_waits_for_is_one_too(orders: Database) -> None:
    tasks: list[asyncio.Task[None]] = []

    @db.output("out", **written_to(orders))
    async def write(req: Any, out: AsyncDbOut) -> None:
        tasks.append(asyncio.create_task(out.set({"order_id": 1})))

    async def call() -> None:
        with pytest.raises(HandlerError, match=r"out\.set\(…\) had not ended when the handler returned"):
            await write(req=None)
        await asyncio.gather(*tasks)

    asyncio.run(call())


def test_an_error_of_the_handler_itself_is_not_hidden(orders: Database) -> None:
    @db.output("out", **written_to(orders))
    async def write(req: Any, out: AsyncDbOut) -> None:
        out.set({"order_id": 1})  # type: ignore[unused-coroutine]  # what the test is about
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        asyncio.run(write(req=None))


def test_calls_may_be_awaited_in_any_way(orders: Database) -> None:
    @db.output("out", **written_to(orders))
    async def write(req: Any, out: AsyncDbOut) -> None:
        later = asyncio.create_task(out.set({"order_id": 1}))
        await asyncio.wait_for(out.set({"order_id": 2}), timeout=60)
        await asyncio.gather(out.set({"order_id": 3}), later)

    asyncio.run(write(req=None))
    assert effects(orders) == [1, 2, 3]


def test_an_invocation_does_not_answer_for_another(orders: Database) -> None:
    """The output is one for all invocations; what one of them has under way is no fault of the other."""

    async def both() -> None:
        is_called, may_end = asyncio.Event(), asyncio.Event()

        @db.output("out", **written_to(orders))
        async def write(req: int, out: AsyncDbOut) -> None:
            writing = out.set({"order_id": req})
            if req == 1:
                is_called.set()
                await may_end.wait()
            await writing

        slow = asyncio.create_task(write(req=1))
        await is_called.wait()
        await write(req=2)
        may_end.set()
        await slow

    asyncio.run(both())
    assert effects(orders) == [1, 2]
