"""``output``: one ``DbOut`` per handler, which writes when it is told to."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import ConfigurationError, DbBindings, DbConfig, DbOut, WriteError
from tests.binding.databases import Database
from tests.binding.statements import sent_to

db = DbBindings()
ALL = "SELECT id, status FROM orders ORDER BY id"


@pytest.fixture
def orders(database: Database) -> Database:
    database.execute("CREATE TABLE orders (id integer PRIMARY KEY, status varchar(20) NOT NULL)")
    return database


def _inserting(orders: Database) -> Any:
    @db.output("out", url=orders.url, table="orders", engine_provider=orders.provider)
    def handler(req: Any, out: DbOut) -> str:
        out.set(req)
        return "done"

    return handler


def test_a_dict_is_one_row_and_a_list_is_many(orders: Database) -> None:
    handler = _inserting(orders)
    assert handler({"id": 1, "status": "new"}) == "done"
    with sent_to(orders.engine) as sent:
        handler(req=[{"id": 2, "status": "new"}, {"id": 3, "status": "paid"}])
    assert [each.rows for each in sent] == [2]
    assert orders.rows(ALL) == [(1, "new"), (2, "new"), (3, "paid")]


@pytest.mark.parametrize("nothing", [None, []])
def test_nothing_writes_nothing_and_does_not_even_connect(nothing: Any) -> None:
    @db.output("out", url="postgresql://nobody@127.0.0.1:1/nowhere", table="orders")
    def handler(out: DbOut) -> None:
        out.set(nothing)

    handler()


def test_an_upsert_writes_over_what_is_there(orders: Database) -> None:
    @db.output(
        "out",
        url=orders.url,
        table="orders",
        action="upsert",
        conflict_columns=["id"],
        engine_provider=orders.provider,
    )
    def handler(out: DbOut, status: str) -> None:
        out.set([{"id": 1, "status": status}, {"id": 2, "status": status}])
        out.set({"id": 3, "status": status})

    handler(status="new")
    handler("paid")
    assert orders.rows(ALL) == [(1, "paid"), (2, "paid"), (3, "paid")]


def test_an_async_handler_awaits_what_it_writes(orders: Database) -> None:
    @db.output("out", url=orders.url, table="orders", engine_provider=orders.provider)
    async def handler(req: Any, out: Any) -> str:
        await out.set(req)
        return "done"

    async def calls() -> Any:
        return await asyncio.gather(*(handler({"id": number, "status": "new"}) for number in range(20)))

    assert asyncio.run(calls()) == ["done"] * 20
    assert orders.value("SELECT count(*) FROM orders") == 20


def test_one_dbout_serves_every_call(sqlite: Database) -> None:
    given = []

    @db.output("out", url=sqlite.url, table="orders", engine_provider=sqlite.provider)
    def handler(out: DbOut) -> None:
        given.append(out)

    handler()
    handler()
    assert isinstance(given[0], DbOut)
    assert given[0] is given[1]


def test_what_was_set_stays_when_the_handler_fails_later(orders: Database) -> None:
    """``set`` writes at once; it does not wait for the handler to end."""

    @db.output("out", url=orders.url, table="orders", engine_provider=orders.provider)
    def handler(out: DbOut) -> None:
        out.set({"id": 1, "status": "new"})
        raise KeyError

    with pytest.raises(KeyError):
        handler()
    assert orders.rows(ALL) == [(1, "new")]


def test_a_list_is_written_whole_or_not_at_all(orders: Database) -> None:
    with pytest.raises(WriteError, match="insert into 'orders' failed"):
        _inserting(orders)([{"id": 1, "status": "new"}, {"id": 1, "status": "again"}])
    with pytest.raises(WriteError, match="must all have the same columns"):
        _inserting(orders)([{"id": 1, "status": "new"}, {"id": 2}])
    assert orders.rows(ALL) == []


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (({"id": 1},), r"takes a dict, .* a list of them, or None, not tuple"),
        ("id", "not str"),
        ([{"id": 1, "status": "new"}, 7], r"row 2 of 2 is a int, .* Nothing was written"),
        ({"id": 1, "color": "red"}, r"no column\(s\) 'color'"),
        ({}, "data must not be empty"),
    ],
)
def test_what_is_no_row_is_refused(sqlite: Database, wrong: Any, said: str) -> None:
    sqlite.execute("CREATE TABLE orders (id integer PRIMARY KEY, status text)")
    with pytest.raises(ConfigurationError, match=said):
        _inserting(sqlite)(wrong)
    assert sqlite.rows(ALL) == []


URL = "sqlite:///unused.db"
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"url": URL, "table": "t", "action": "replace"}, "action must be 'insert' or 'upsert', not 'replace'"),
    ({"url": URL, "table": "t", "action": "upsert"}, r"action='upsert' needs conflict_columns="),
    ({"url": URL, "table": "t", "action": "upsert", "conflict_columns": []}, "needs conflict_columns="),
    ({"url": URL, "table": "t", "action": "upsert", "conflict_columns": "id"}, "must be a list of column names"),
    (
        {"url": "oracle+oracledb://db/shop", "table": "t", "action": "upsert", "conflict_columns": ["id"]},
        "Upsert is not supported for dialect 'oracle'. Supported: .* Use insert",
    ),
    (
        {
            "db_config": DbConfig(connection_url="oracle://db/shop"),
            "table": "t",
            "action": "upsert",
            "conflict_columns": ["id"],
        },
        "not supported for dialect 'oracle'",
    ),
    ({"url": URL, "table": "t", "conflict_columns": ["id"]}, "conflict_columns mean nothing to an insert"),
    ({"url": URL, "table": ""}, "table must not be empty"),
    ({"url": URL, "table": None}, "output: pass table=…, the table to write to"),
    ({"table": "t"}, "exactly one of url and db_config"),
    ({"url": "not a url", "table": "t"}, "cannot be parsed"),
]


@pytest.mark.parametrize(("settings", "said"), REFUSED, ids=[said for _, said in REFUSED])
def test_what_cannot_work_is_refused_when_the_decorator_is_applied(settings: dict[str, Any], said: str) -> None:
    def handler(out: DbOut) -> None: ...

    with pytest.raises(ConfigurationError, match=said):
        db.output("out", **settings)(handler)


def test_a_dialect_that_the_environment_tells_is_judged_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_DB", "oracle://app@db/shop")

    def handler(out: DbOut) -> None: ...

    with pytest.raises(ConfigurationError, match="Upsert is not supported for dialect 'oracle'"):
        db.output("out", url="%SHOP_DB%", table="t", action="upsert", conflict_columns=["id"])(handler)
    for harmless in (URL, ""):
        monkeypatch.setenv("SHOP_DB", harmless)
        db.output("out", url="%SHOP_DB%", table="t", action="upsert", conflict_columns=["id"])(handler)


@pytest.mark.parametrize("url", ["%SHOP_DB%", "oracle+%DRIVER%://db/shop", "postgresql://app@db:%PORT%/shop"])
def test_a_url_that_the_environment_completes_is_judged_later(url: str) -> None:
    @db.output("out", url=url, table="t", action="upsert", conflict_columns=["id"])
    def handler(out: DbOut) -> None:
        out.set({"id": 1})

    with pytest.raises(ConfigurationError, match="is not set"):
        handler()
