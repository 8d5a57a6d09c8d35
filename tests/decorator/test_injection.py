"""``inject_reader`` and ``inject_writer``: a reader or writer per call, closed whatever happens."""

from __future__ import annotations

import asyncio
import contextvars
from typing import Any

import pytest

from holdfast import ConfigurationError, DbBindings, DbConfig, DbReader, DbWriter, QueryError, WriteError
from tests.binding.databases import Database

db = DbBindings()
ALL = "SELECT id, amount FROM entries ORDER BY id"


@pytest.fixture
def entries(database: Database) -> Database:
    database.execute("CREATE TABLE entries (id integer PRIMARY KEY, amount integer NOT NULL)")
    database.execute("INSERT INTO entries VALUES (1, 10), (2, 20), (3, 30)")
    return database


def test_a_reader_of_its_own_for_every_call(entries: Database) -> None:
    given: list[DbReader] = []

    @db.inject_reader("reader", url=entries.url, table="entries")
    def handler(req: int, reader: DbReader) -> Any:
        given.append(reader)
        return reader.get(pk={"id": req}), reader.scalar("SELECT count(*) FROM entries")

    assert handler(1) == ({"id": 1, "amount": 10}, 3)
    assert handler(req=9) == (None, 3)
    assert given[0] is not given[1]
    assert all(reader._own_engine is None for reader in given), "closed after the call"


def test_a_writer_of_its_own_for_every_call(entries: Database) -> None:
    given: list[DbWriter] = []

    @db.inject_writer("writer", url=entries.url, table="entries")
    def handler(writer: DbWriter, req: int) -> None:
        given.append(writer)
        with writer.transaction():
            writer.insert(data={"id": req, "amount": 0})
            writer.delete(pk={"id": 1})

    handler(7)
    handler(req=8)
    assert entries.rows(ALL) == [(2, 20), (3, 30), (7, 0), (8, 0)]
    assert given[0] is not given[1]
    assert all(writer._own_engine is None for writer in given), "closed after the call"


def test_they_are_closed_when_the_handler_fails(entries: Database) -> None:
    given: list[Any] = []

    @db.inject_reader("reader", url=entries.url, table="entries")
    @db.inject_writer("writer", url=entries.url, table="entries")
    def handler(reader: DbReader, writer: DbWriter) -> None:
        given.extend([reader, writer])
        next(reader.stream("SELECT id FROM entries"))
        writer.update(data={"amount": 1}, pk={"id": 1})
        raise KeyError

    with pytest.raises(KeyError):
        handler()
    assert [each._own_engine for each in given] == [None, None]


def test_a_shared_engine_stays_open(entries: Database) -> None:
    @db.inject_reader("reader", url=entries.url, engine_provider=entries.provider)
    def handler(reader: DbReader) -> Any:
        return reader.scalar("SELECT count(*) FROM entries")

    assert [handler() for _ in range(5)] == [3] * 5
    assert entries.engine.pool.checkedin() == 1  # type: ignore[attr-defined]  # a QueuePool has it


def test_an_async_reader_awaits_every_method(entries: Database) -> None:
    @db.inject_reader("reader", url=entries.url, table="entries", engine_provider=entries.provider)
    async def handler(reader: Any) -> None:
        assert await reader.get(pk={"id": 1}) == {"id": 1, "amount": 10}
        assert await reader.query("SELECT id FROM entries WHERE id > :low ORDER BY id", params={"low": 1}) == [
            {"id": 2},
            {"id": 3},
        ]
        assert await reader.one("SELECT id FROM entries WHERE id = 1") == {"id": 1}
        assert await reader.one_or_none("SELECT id FROM entries WHERE id = 9") is None
        assert await reader.scalar("SELECT count(*) FROM entries") == 3
        assert [row["id"] async for row in reader.stream("SELECT id FROM entries ORDER BY id", chunk_size=2)] == [
            1,
            2,
            3,
        ]
        with pytest.raises(QueryError, match="nowhere"):
            await reader.query("SELECT * FROM nowhere")
        with pytest.raises(ConfigurationError, match="chunk_size"):
            [row async for row in reader.stream("SELECT 1", chunk_size=0)]

    asyncio.run(handler())


def test_an_async_reader_may_be_asked_many_things_at_once(entries: Database) -> None:
    @db.inject_reader("reader", url=entries.url, table="entries")
    async def handler(reader: Any) -> Any:
        return await asyncio.gather(*(reader.get(pk={"id": number}) for number in (1, 2, 3, 9)))

    assert [row and row["amount"] for row in asyncio.run(handler())] == [10, 20, 30, None]


def test_an_async_stream_left_early_gives_its_connection_back(entries: Database) -> None:
    @db.inject_reader("reader", url=entries.url, engine_provider=entries.provider)
    async def handler(reader: Any) -> Any:
        async for row in reader.stream("SELECT id FROM entries ORDER BY id", chunk_size=1):
            return row
        return None

    assert asyncio.run(handler()) == {"id": 1}
    assert entries.connections_in_use == 0


def test_an_async_writer_awaits_every_method(entries: Database) -> None:
    @db.inject_writer("writer", url=entries.url, table="entries", engine_provider=entries.provider)
    async def handler(writer: Any) -> None:
        await writer.insert(data={"id": 4, "amount": 40})
        await writer.insert_many(rows=[{"id": 5, "amount": 50}, {"id": 6, "amount": 60}, {"id": 7, "amount": 70}])
        await writer.upsert(data={"id": 4, "amount": 41}, conflict_columns=["id"])
        await writer.upsert_many(rows=[{"id": 5, "amount": 51}], conflict_columns=["id"])
        await writer.update(data={"amount": 61}, pk={"id": 6})
        await writer.update_many(rows=[{"id": 1, "amount": 11}])
        await writer.delete(pk={"id": 7})
        await writer.delete_many(pks=[{"id": 2}, {"id": 3}])

    asyncio.run(handler())
    assert entries.rows(ALL) == [(1, 11), (4, 41), (5, 51), (6, 61)]


def test_an_async_transaction_commits_or_rolls_back_as_one(entries: Database) -> None:
    @db.inject_writer("writer", url=entries.url, table="entries", engine_provider=entries.provider)
    async def handler(writer: Any, req: bool) -> None:
        async with writer.transaction() as tx:
            await asyncio.gather(*(tx.insert(data={"id": number, "amount": 0}) for number in range(10, 20)))
            await writer.update(data={"amount": 99}, pk={"id": 1})  # the writer itself is part of it too
            if req:
                raise KeyError

    with pytest.raises(KeyError):
        asyncio.run(handler(req=True))
    assert entries.rows(ALL) == [(1, 10), (2, 20), (3, 30)]
    asyncio.run(handler(req=False))
    assert entries.value("SELECT count(*) FROM entries") == 13
    assert entries.value("SELECT amount FROM entries WHERE id = 1") == 99


def test_async_transactions_do_not_nest_and_are_doomed_by_a_failed_write(entries: Database) -> None:
    @db.inject_writer("writer", url=entries.url, table="entries", engine_provider=entries.provider)
    async def nesting(writer: Any) -> None:
        async with writer.transaction() as tx:
            await tx.insert(data={"id": 4, "amount": 0})
            with pytest.raises(WriteError, match="do not nest"):
                async with tx.transaction():
                    pytest.fail("must not be entered")

    @db.inject_writer("writer", url=entries.url, table="entries", engine_provider=entries.provider)
    async def going_on(writer: Any) -> None:
        async with writer.transaction() as tx:
            await tx.insert(data={"id": 5, "amount": 0})
            with pytest.raises(WriteError, match="insert into 'entries' failed"):
                await tx.insert(data={"id": 1, "amount": 0})

    asyncio.run(nesting())
    with pytest.raises(WriteError, match="An earlier write"):
        asyncio.run(going_on())
    assert entries.rows("SELECT id FROM entries ORDER BY id") == [(1,), (2,), (3,), (4,)]


def test_a_writer_goes_on_after_an_async_transaction(sqlite: Database) -> None:
    sqlite.execute("CREATE TABLE entries (id integer PRIMARY KEY)")

    @db.inject_writer("writer", url=sqlite.url, table="entries", engine_provider=sqlite.provider)
    async def handler(writer: Any) -> None:
        async with writer.transaction():
            await writer.insert(data={"id": 1})
        await writer.insert(data={"id": 2})
        async with writer.transaction():
            await writer.insert(data={"id": 3})

    asyncio.run(handler())
    assert sqlite.value("SELECT count(*) FROM entries") == 3


def test_context_variables_reach_the_thread_that_does_the_work(
    sqlite: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Traces follow a call through context variables."""
    request = contextvars.ContextVar("request", default="none")
    seen: list[str] = []
    plain = DbWriter.insert

    def insert(writer: DbWriter, *, data: dict[str, object]) -> None:
        seen.append(request.get())
        plain(writer, data=data)

    monkeypatch.setattr(DbWriter, "insert", insert)
    sqlite.execute("CREATE TABLE entries (id integer PRIMARY KEY)")

    @db.inject_writer("writer", url=sqlite.url, table="entries", engine_provider=sqlite.provider)
    async def handler(writer: Any) -> None:
        request.set("r-1")
        await writer.insert(data={"id": 1})
        async with writer.transaction() as tx:
            request.set("r-2")
            await tx.insert(data={"id": 2})

    asyncio.run(handler())
    assert seen == ["r-1", "r-2"]


@pytest.mark.parametrize("decorator", [db.inject_reader, db.inject_writer])
def test_what_cannot_work_is_refused_when_the_decorator_is_applied(decorator: Any) -> None:
    def handler(tool: Any) -> None: ...

    for settings, said in (
        ({"url": "sqlite:///x.db", "table": ""}, "table must not be empty"),
        ({"table": "t"}, "exactly one of url and db_config"),
        ({"url": "", "table": "t"}, "url must not be empty"),
    ):
        with pytest.raises(ConfigurationError, match=f"^{decorator.__name__}: .*{said}"):
            decorator("tool", **settings)(handler)
    with pytest.raises(ConfigurationError, match="cannot be parsed"):
        decorator("tool", table="t", url="not a url")
    with pytest.raises(ConfigurationError, match="cannot be parsed"):
        decorator("tool", table="t", db_config=DbConfig(connection_url="not a url"))


def test_a_writer_needs_a_table_when_the_decorator_is_applied() -> None:
    with pytest.raises(ConfigurationError, match="inject_writer: pass table=…, the table to write to"):
        db.inject_writer("tool", url="sqlite:///x.db", table=None)  # type: ignore[arg-type]  # what is refused
