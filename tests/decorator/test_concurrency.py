"""Many invocations at once through one ``EngineProvider``: the pool keeps its bounds and gets every connection back."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine

from holdfast import DbBindings, DbConfig, DbOut, EngineProvider
from tests.binding.databases import Database

db = DbBindings()
CALLERS = 64
CALLS = [40, pytest.param(200, marks=pytest.mark.prove)]  # each
POOL_SIZE, OVERFLOW = 4, 3


class Watch:
    """How many connections of a pool were in use at once, and how many were ever made."""

    def __init__(self, engine: Engine) -> None:
        self._lock = threading.Lock()
        self.in_use = self.most_in_use = self.made = 0
        event.listen(engine, "checkout", lambda *_: self._count(1))
        event.listen(engine, "checkin", lambda *_: self._count(-1))
        event.listen(engine, "connect", lambda *_: self._made())

    def _count(self, change: int) -> None:
        with self._lock:
            self.in_use += change
            self.most_in_use = max(self.most_in_use, self.in_use)

    def _made(self) -> None:
        with self._lock:
            self.made += 1


class Counters:
    """A table with a row for each caller, read and written through one provider."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.provider = EngineProvider()
        self.config = DbConfig(
            connection_url=database.url, pool_size=POOL_SIZE, engine_kwargs={"max_overflow": OVERFLOW}
        )
        self.target: dict[str, Any] = {"db_config": self.config, "engine_provider": self.provider, "table": "counters"}
        self.engine = self.provider.get_engine(self.config)
        self.watch = Watch(self.engine)
        database.execute("CREATE TABLE counters (id integer PRIMARY KEY, n integer NOT NULL)")
        database.writer("counters").insert_many(rows=[{"id": number, "n": 0} for number in range(CALLERS)])

    def check(self, calls: int) -> None:
        """Check that every call has counted, that nothing is held, and that there never was too much."""
        pool: Any = self.engine.pool
        in_use, bound = pool.checkedout(), POOL_SIZE + OVERFLOW
        self.provider.dispose_all()
        assert self.database.rows("SELECT min(n), max(n) FROM counters") == [(calls, calls)]
        assert (in_use, self.watch.in_use) == (0, 0)
        assert 1 < self.watch.most_in_use <= bound
        assert self.watch.made < CALLERS * calls / 10, "connections are used again"


@pytest.fixture
def counters(postgres: Database) -> Counters:
    return Counters(postgres)


@pytest.mark.parametrize("calls", CALLS)
def test_64_threads_with_many_calls_each(counters: Counters, calls: int) -> None:
    @db.input("row", pk=lambda req: {"id": req}, **counters.target)
    @db.output("out", action="upsert", conflict_columns=["id"], **counters.target)
    def count(req: int, row: Any, out: DbOut) -> None:
        out.set({"id": req, "n": row["n"] + 1})

    together = threading.Barrier(CALLERS)

    def call(number: int) -> None:
        together.wait()
        for _ in range(calls):
            count(req=number)

    with ThreadPoolExecutor(CALLERS) as threads:
        list(threads.map(call, range(CALLERS)))
    counters.check(calls)


@pytest.mark.parametrize("calls", CALLS)
def test_64_tasks_with_many_calls_each(counters: Counters, calls: int) -> None:
    @db.input("row", pk=lambda req: {"id": req}, **counters.target)
    @db.output("out", action="upsert", conflict_columns=["id"], **counters.target)
    async def count(req: int, row: Any, out: Any) -> None:
        await out.set({"id": req, "n": row["n"] + 1})

    async def call(number: int) -> None:
        for _ in range(calls):
            await count(req=number)

    async def all_together() -> None:
        await asyncio.gather(*(call(number) for number in range(CALLERS)))

    asyncio.run(all_together())
    counters.check(calls)


def test_threads_that_ask_at_once_share_one_engine(postgres: Database) -> None:
    provider, together = EngineProvider(), threading.Barrier(16)

    def get(number: int) -> int:
        together.wait()
        config = DbConfig(connection_url=postgres.url, pool_size=1 + number % 2)
        return id(provider.get_engine(config))

    with ThreadPoolExecutor(16) as threads:
        assert len(set(threads.map(get, range(16)))) == 2
    provider.dispose_all()


def test_transactions_of_more_threads_than_connections_take_turns(postgres: Database) -> None:
    """None of them needs a second connection, so that none waits for one that another holds."""
    postgres.execute("CREATE TABLE entries (id integer PRIMARY KEY)")
    provider = EngineProvider()
    config = DbConfig(connection_url=postgres.url, pool_size=2, engine_kwargs={"max_overflow": 0})
    together = threading.Barrier(16)

    @db.inject_writer("writer", db_config=config, table="entries", engine_provider=provider)
    def write(req: int, writer: Any) -> None:
        together.wait()
        with writer.transaction():
            writer.insert(data={"id": req})
            writer.insert(data={"id": req + 100})

    with ThreadPoolExecutor(16) as threads:
        list(threads.map(write, range(16)))
    assert postgres.value("SELECT count(*) FROM entries") == 32
    provider.dispose_all()
