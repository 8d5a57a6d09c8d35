"""``async with writer.transaction() as tx``: the handle's writes go together, in whichever task; no other joins."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import AsyncDbWriter, ConfigurationError, DbBindings, WriteError
from tests.binding.databases import Database

db = DbBindings()


@pytest.fixture(params=["postgres", "mariadb"])
def entries(request: pytest.FixtureRequest) -> Database:
    database: Database = request.getfixturevalue(request.param)
    database.execute("CREATE TABLE entries (id integer PRIMARY KEY)")
    return database


def stored(database: Database) -> list[int]:
    return [row[0] for row in database.rows("SELECT id FROM entries ORDER BY id")]


def run(database: Database, body: Any) -> None:
    @db.inject_writer("writer", url=database.url, table="entries", engine_provider=database.provider)
    async def handler(req: Any, writer: AsyncDbWriter) -> None:
        await body(writer)

    asyncio.run(handler(req=None))


def test_14_4_what_another_task_writes_past_the_handle_is_refused(entries: Database) -> None:
    async def body(writer: AsyncDbWriter) -> None:
        is_open, is_refused = asyncio.Event(), asyncio.Event()

        async def fail_in_a_block() -> None:
            async with writer.transaction() as transaction:
                await transaction.insert(data={"id": 1})
                await writer.insert(data={"id": 2})
                with pytest.raises(WriteError, match=r"write through its handle, as in with writer\.transaction"):
                    await asyncio.create_task(writer.insert(data={"id": 4}))
                is_open.set()
                await is_refused.wait()
                raise KeyError

        async def write_beside_it() -> None:
            await is_open.wait()
            with pytest.raises(WriteError, match=r"write through its handle, as in with writer\.transaction"):
                await writer.insert(data={"id": 3})
            with pytest.raises(WriteError, match="another thread or task needs a writer of its own"):
                async with writer.transaction():
                    pytest.fail("must not be entered")
            is_refused.set()

        with pytest.raises(KeyError):
            await asyncio.gather(fail_in_a_block(), write_beside_it())
        await writer.insert(data={"id": 5})

    run(entries, body)
    assert stored(entries) == [5]


def test_tasks_of_the_block_take_part_in_it(entries: Database) -> None:
    async def body(writer: AsyncDbWriter) -> None:
        async def stumble() -> None:
            async with writer.transaction() as transaction:
                await asyncio.gather(*(transaction.insert(data={"id": each}) for each in range(5)))
                raise KeyError

        with pytest.raises(KeyError):
            await stumble()
        async with writer.transaction() as transaction:
            await asyncio.gather(*(transaction.insert(data={"id": each}) for each in (7, 8)))
        await writer.insert(data={"id": 9})
        with pytest.raises(WriteError, match=r"This transaction\(\) has ended"):
            await transaction.insert(data={"id": 10})

    run(entries, body)
    assert stored(entries) == [7, 8, 9]


def test_with_instead_of_async_with_is_told(entries: Database) -> None:
    async def body(writer: AsyncDbWriter) -> None:
        with pytest.raises(ConfigurationError, match=r"async with writer\.transaction\(\)"), writer.transaction():
            pytest.fail("must not be entered")

    run(entries, body)
