"""Line 4: a write belongs to an open ``transaction()`` because it goes through the handle, not by where it is made.

A sync dependency of FastAPI is entered, used and left on different threads, each in a copy of the request's context: so
is a block that a thread pool opens. Before, the writes of such a handler were transactions of their own, and stayed
after the rollback.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import pytest
from fastapi import Depends, FastAPI
from httpx import ASGITransport, AsyncClient

from holdfast import DbWriter, WriteError
from tests.binding.databases import Database

PAST_THE_HANDLE = r"would be no part of it: write through its handle, as in with writer\.transaction\(\) as tx: "
ALL = "SELECT id FROM entries ORDER BY id"


@pytest.fixture
def entries(database: Database) -> Database:
    database.execute("CREATE TABLE entries (id integer PRIMARY KEY)")
    database.execute("INSERT INTO entries VALUES (1)")
    return database


def post(writer: DbWriter, number: int, *, hands_out: str) -> int:
    """Post to a web application whose handler gets the handle, or the writer itself, from a dependency with a block."""
    app = FastAPI()

    def in_a_transaction() -> Iterator[DbWriter]:
        with writer.transaction() as tx:
            yield tx if hands_out == "handle" else writer

    dependency = Depends(in_a_transaction)

    @app.post("/entries/{number}")
    def add(number: int, given: Any = dependency) -> None:
        given.insert(data={"id": number})
        if number > 2:
            raise KeyError

    async def call() -> int:
        async with AsyncClient(transport=ASGITransport(app), base_url="http://app") as client:
            return (await client.post(f"/entries/{number}")).status_code

    return asyncio.run(call())


def test_14_4_a_handle_from_a_dependency_of_fastapi_is_the_transaction(entries: Database) -> None:
    writer = entries.writer("entries")
    with pytest.raises(KeyError):
        post(writer, 3, hands_out="handle")
    assert entries.rows(ALL) == [(1,)], "the handler's write was rolled back with the block"
    assert post(writer, 2, hands_out="handle") == 200
    assert entries.rows(ALL) == [(1,), (2,)]


def test_14_4_a_writer_from_a_dependency_of_fastapi_is_refused(sqlite: Database) -> None:
    sqlite.execute("CREATE TABLE entries (id integer PRIMARY KEY)")
    with pytest.raises(WriteError, match=PAST_THE_HANDLE):
        post(sqlite.writer("entries"), 2, hands_out="writer")
    assert sqlite.rows(ALL) == []


def elsewhere(step: Callable[[], None], how: str) -> None:
    """Run a step in another context, raising what it raises."""
    match how:
        case "thread":
            with ThreadPoolExecutor(1) as thread:
                thread.submit(step).result()
        case "thread with a copy of the context":
            with ThreadPoolExecutor(1) as thread:
                thread.submit(copy_context().run, step).result()
        case _:

            async def run() -> None:
                step()

            asyncio.run(run())


@pytest.mark.parametrize("how", ["thread", "thread with a copy of the context", "task"])
def test_14_4_a_write_past_the_handle_from_elsewhere_is_refused(entries: Database, how: str) -> None:
    writer = entries.writer("entries")
    with writer.transaction() as tx:
        writer.insert(data={"id": 2})
        with pytest.raises(WriteError, match=PAST_THE_HANDLE):
            elsewhere(lambda: writer.insert(data={"id": 3}), how)
        elsewhere(lambda: tx.insert(data={"id": 4}), how)
        assert entries.rows(ALL) == [(1,)], "what was refused is not written, and what was not is part of the block"
    assert entries.rows(ALL) == [(1,), (2,), (4,)]
    elsewhere(lambda: writer.insert(data={"id": 5}), how)
    assert entries.rows(ALL) == [(1,), (2,), (4,), (5,)], "after the block everybody writes as before"


def test_14_4_a_block_that_a_pool_opens_is_not_joined_by_the_next_step_on_its_thread(sqlite: Database) -> None:
    """The thread is the same, and nothing else is."""
    sqlite.execute("CREATE TABLE entries (id integer PRIMARY KEY)")
    writer = sqlite.writer("entries")
    block = writer.transaction()
    with ThreadPoolExecutor(1) as thread:
        tx = thread.submit(copy_context().run, block.__enter__).result()
        with pytest.raises(WriteError, match=PAST_THE_HANDLE):
            thread.submit(copy_context().run, lambda: writer.insert(data={"id": 2})).result()
        thread.submit(copy_context().run, lambda: tx.insert(data={"id": 3})).result()
        thread.submit(copy_context().run, block.__exit__, None, None, None).result()
    assert sqlite.rows(ALL) == [(3,)]


def test_14_4_the_handle_of_a_block_that_was_left_writes_nothing(entries: Database) -> None:
    writer = entries.writer("entries")
    with writer.transaction() as tx:
        tx.insert(data={"id": 2})
        with pytest.raises(WriteError, match="do not nest"), tx.transaction():
            pytest.fail("must not be entered")
    with pytest.raises(WriteError, match=r"This transaction\(\) has ended"):
        tx.insert(data={"id": 3})
    with pytest.raises(WriteError, match=r"This transaction\(\) has ended"), tx.transaction():
        pytest.fail("must not be entered")
    with writer.transaction() as another:
        another.insert(data={"id": 4})
        another.close()
        with pytest.raises(WriteError, match="closed inside"):
            another.insert(data={"id": 5})
    assert entries.rows(ALL) == [(1,), (2,)]


def test_14_4_threads_write_through_one_handle_in_turns(entries: Database) -> None:
    writer, ready = entries.writer("entries"), threading.Barrier(4)

    def add(number: int) -> None:
        ready.wait(10)
        tx.insert(data={"id": number})

    with writer.transaction() as tx, ThreadPoolExecutor(4) as threads:
        list(threads.map(add, range(2, 6)))
    assert entries.rows(ALL) == [(number,) for number in range(1, 6)]
