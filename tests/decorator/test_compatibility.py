"""The same calls to azure-functions-db and to Holdfast have the same outcome, but for a few listed with their reasons.

Names and signatures of what is exported are compared in tests/test_azure_functions_db_names.py.
"""

from __future__ import annotations

import asyncio
import inspect
import shutil
import sqlite3
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import holdfast
from holdfast.decorator import async_proxies, signatures
from tests.binding.databases import Database

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import azure_functions_db
    from azure_functions_db.decorator import async_proxies as their_proxies
    from azure_functions_db.decorator import constants as their_constants

pytestmark = pytest.mark.filterwarnings("ignore:.*called without params:UserWarning")


class Row(BaseModel):
    """A model that fits the table."""

    id: int
    name: str


@dataclass
class Package:
    """One of the two, on a database of its own."""

    api: Any
    url: str

    @property
    def db(self) -> Any:
        return self.api.DbBindings()

    def reader(self, table: str | None = "people") -> Any:
        return self.api.DbReader(url=self.url, table=table)

    def writer(self, table: str = "people") -> Any:
        return self.api.DbWriter(url=self.url, table=table)

    def input(self, **settings: Any) -> Any:
        return self.db.input("row", **({"url": self.url} | settings))(lambda req, row: row)

    def output(self, **settings: Any) -> Any:
        return self.db.output("out", **({"url": self.url, "table": "people"} | settings))(lambda req, out: out.set(req))


Scenario = Callable[[Package], Any]
NEW: dict[str, object] = {"id": 3, "name": "Edsger"}
READING: dict[str, Scenario] = {
    "get": lambda package: package.reader().get(pk={"id": 1}),
    "get nothing": lambda package: package.reader().get(pk={"id": 9}),
    "get without table": lambda package: package.reader(None).get(pk={"id": 1}),
    "get from an unknown table": lambda package: package.reader("nowhere").get(pk={"id": 1}),
    "get from a table without key": lambda package: package.reader("keyless").get(pk={"a": 1}),
    "get with an empty key": lambda package: package.reader().get(pk={}),
    "get with a wrong key": lambda package: package.reader().get(pk={"name": "Ada"}),
    "get with too much": lambda package: package.reader().get(pk={"id": 1, "name": "Ada"}),
    "get with half a key": lambda package: package.reader("pairs").get(pk={"a": 1}),
    "query": lambda package: package.reader(None).query("SELECT * FROM people WHERE id = :id", params={"id": 1}),
    "query without params": lambda package: package.reader(None).query("SELECT count(*) AS n FROM people"),
    "query with empty params": lambda package: package.reader(None).query("SELECT 1 AS n", params={}),
    "query that fails": lambda package: package.reader(None).query("SELECT * FROM nowhere"),
    "query without a needed parameter": lambda package: package.reader(None).query("SELECT :x"),
    "scalar": lambda package: package.reader(None).scalar("SELECT name, id FROM people WHERE id = 1", params={}),
    "scalar of nothing": lambda package: package.reader(None).scalar("SELECT id FROM people WHERE id = 9"),
    "scalar of many": lambda package: package.reader(None).scalar("SELECT id FROM people"),
    "one": lambda package: package.reader(None).one("SELECT id FROM people WHERE id = 1"),
    "one of none": lambda package: package.reader(None).one("SELECT id FROM people WHERE id = 9"),
    "one of many": lambda package: package.reader(None).one("SELECT id FROM people"),
    "one or none": lambda package: package.reader(None).one_or_none("SELECT id FROM people WHERE id = 9"),
    "one or none of many": lambda package: package.reader(None).one_or_none("SELECT id FROM people"),
    "reader closed and used again": lambda package: _reopened(package.reader()),
    "no url": lambda package: package.api.DbReader(table="people"),
    "empty url": lambda package: package.api.DbReader(url=""),
    "variable that is not set": lambda package: package.api.DbReader(url="%NO_SUCH_VARIABLE%"),
}
WRITING: dict[str, Scenario] = {
    "insert": lambda package: package.writer().insert(data=NEW),
    "insert of a key there is": lambda package: package.writer().insert(data={"id": 1, "name": "x"}),
    "insert of an unknown column": lambda package: package.writer().insert(data={"id": 3, "color": "red"}),
    "insert of nothing": lambda package: package.writer().insert(data={}),
    "insert into an unknown table": lambda package: package.writer("nowhere").insert(data=NEW),
    "insert_many": lambda package: package.writer().insert_many(rows=[NEW, {"id": 4, "name": "x"}]),
    "insert_many of none": lambda package: package.writer().insert_many(rows=[]),
    "insert_many of none into an unknown table": lambda package: package.writer("nowhere").insert_many(rows=[]),
    "insert_many of different columns": lambda package: package.writer().insert_many(rows=[NEW, {"id": 4}]),
    "insert_many that fails in the middle": lambda package: package.writer().insert_many(rows=[NEW, NEW]),
    "upsert of a new row": lambda package: package.writer().upsert(data=NEW, conflict_columns=["id"]),
    "upsert of an old row": lambda package: package.writer().upsert(
        data={"id": 1, "name": "x"}, conflict_columns=["id"]
    ),
    "upsert of keys alone": lambda package: package.writer("keys").upsert(data={"id": 1}, conflict_columns=["id"]),
    "upsert by no column": lambda package: package.writer().upsert(data=NEW, conflict_columns=[]),
    "upsert by an unknown column": lambda package: package.writer().upsert(data=NEW, conflict_columns=["color"]),
    "upsert by a column that is not unique": lambda package: package.writer().upsert(
        data=NEW, conflict_columns=["name"]
    ),
    "upsert_many": lambda package: package.writer().upsert_many(rows=[NEW, NEW], conflict_columns=["id"]),
    "upsert_many of none": lambda package: package.writer().upsert_many(rows=[], conflict_columns=["id"]),
    "upsert_many of different columns": lambda package: package.writer("wide").upsert_many(
        rows=[{"id": 1, "a": 1}, {"id": 2, "b": 2}], conflict_columns=["id"]
    ),
    "update": lambda package: package.writer().update(data={"name": "x"}, pk={"id": 1}),
    "update of nobody": lambda package: package.writer().update(data={"name": "x"}, pk={"id": 9}),
    "update of nothing": lambda package: package.writer().update(data={}, pk={"id": 1}),
    "update with half a key": lambda package: package.writer("pairs").update(data={"c": 1}, pk={"a": 1}),
    "delete": lambda package: package.writer().delete(pk={"id": 1}),
    "delete of nobody": lambda package: package.writer().delete(pk={"id": 9}),
    "delete with no key": lambda package: package.writer().delete(pk={}),
    "writer without a table": lambda package: package.writer(""),
    "transaction": lambda package: _transaction(package.writer(), lambda writer: writer.insert(data=NEW)),
    "transaction that raises": lambda package: _transaction(package.writer(), _insert_and_raise),
    "transaction in a transaction": lambda package: _transaction(
        package.writer(), lambda writer: _transaction(writer, lambda _: None)
    ),
    "close in a transaction": lambda package: _transaction(package.writer(), lambda writer: writer.close()),
    "write after close in a transaction": lambda package: _transaction(package.writer(), _close_and_insert),
    "failed write that is caught in a transaction": lambda package: _transaction(package.writer(), _insert_in_vain),
    "write by a reader": lambda package: _quietly(
        lambda: package.reader(None).query("DELETE FROM people WHERE id = 1 RETURNING id")
    ),
    "write by a reader that returns nothing": lambda package: _quietly(
        lambda: package.reader(None).query("DELETE FROM people")
    ),
}
DECORATING: dict[str, Scenario] = {
    "input by key": lambda package: package.input(table="people", pk=lambda req: {"id": req})(req=1),
    "input by a fixed key": lambda package: package.input(table="people", pk={"id": 1})(None),
    "input of nothing": lambda package: package.input(table="people", pk={"id": 9})(None),
    "input of nothing that must be": lambda package: package.input(table="people", pk={"id": 9}, on_not_found="raise")(
        None
    ),
    "input by query": lambda package: package.input(
        query="SELECT id FROM people WHERE id > :low", params=lambda req: {"low": req}
    )(0),
    "input with a model": lambda package: package.input(table="people", pk={"id": 1}, model=Row)(None).name,
    "input with models": lambda package: len(package.input(query="SELECT * FROM people", model=Row)(None)),
    "input with what is no model": lambda package: package.input(query="SELECT 1", model=int),
    "input with neither": lambda package: package.input(table="people"),
    "input with both": lambda package: package.input(table="people", pk={"id": 1}, query="SELECT 1"),
    "input by key without table": lambda package: package.input(pk={"id": 1}),
    "input by key with params": lambda package: package.input(table="people", pk={"id": 1}, params={"x": 1}),
    "input with a wrong on_not_found": lambda package: package.input(query="SELECT 1", on_not_found="x"),
    "input with a resolver of something else": lambda package: package.input(table="people", pk=lambda other: {}),
    "input with a resolver of anything": lambda package: package.input(table="people", pk=lambda **_: {}),
    "input with a resolver that raises": lambda package: package.input(table="people", pk=lambda req: req["x"])({}),
    "output of a dict": lambda package: package.output()(NEW),
    "output of a list": lambda package: package.output()([NEW]),
    "output of a model": lambda package: package.output()(Row(id=3, name="x")),
    "output of models": lambda package: package.output()([Row(id=3, name="x"), Row(id=4, name="y")]),
    "output of none": lambda package: package.output()(None),
    "output of nothing": lambda package: package.output()([]),
    "output of a tuple": lambda package: package.output()((NEW,)),
    "output of a list of something": lambda package: package.output()([7]),
    "output of a text": lambda package: package.output()("x"),
    "output as upsert": lambda package: package.output(action="upsert", conflict_columns=["id"])(
        {"id": 1, "name": "x"}
    ),
    "output as upsert by nothing": lambda package: package.output(action="upsert"),
    "output as something else": lambda package: package.output(action="replace"),
    "input twice": lambda package: package.db.input("req", url=package.url, query="SELECT 1")(
        package.input(query="SELECT 1")
    ),
    "a parameter that is not there": lambda package: package.db.output("x", url=package.url, table="t")(lambda out: 0),
    "a parameter of the host": lambda package: package.db.output("req", url=package.url, table="t")(lambda req: 0),
    "input and inject_reader": lambda package: package.db.inject_reader("req", url=package.url)(
        package.input(query="SELECT 1")
    ),
    "output and inject_writer": lambda package: package.db.inject_writer("req", url=package.url, table="t")(
        package.output()
    ),
    "an async writer": lambda package: asyncio.run(_write_async(package)),
}
SCENARIOS = READING | WRITING | DECORATING

DIFFERENT = {
    "upsert_many of different columns": "all rows of a batch have the same columns, whatever the batch does",
    "failed write that is caught in a transaction": "on PostgreSQL its commit would be a rollback without a word",
    "write by a reader": "every call is a transaction of its own; a role without the right to write is what protects",
}
"""Scenarios whose outcome is another one, each with the reason."""


def _reopened(reader: Any) -> Any:
    reader.query("SELECT 1", params={})
    reader.close()
    reader.close()
    return reader.get(pk={"id": 1})


def _transaction(writer: Any, write: Callable[[Any], Any]) -> None:
    with writer.transaction():
        write(writer)


def _insert_and_raise(writer: Any) -> None:
    writer.insert(data=NEW)
    raise KeyError


def _close_and_insert(writer: Any) -> None:
    writer.close()
    writer.insert(data=NEW)


def _insert_in_vain(writer: Any) -> None:
    writer.insert(data=NEW)
    _quietly(lambda: writer.insert(data=NEW))


def _quietly(step: Callable[[], Any]) -> None:
    with suppress(Exception):
        step()


async def _write_async(package: Package) -> None:
    async def handler(writer: Any) -> None:
        await writer.insert(data=NEW)
        async with writer.transaction() as tx:
            await tx.update(data={"name": "y"}, pk={"id": 3})
            await tx.delete(pk={"id": 1})

    await package.db.inject_writer("writer", url=package.url, table="people")(handler)()


TABLES = """
CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT NOT NULL);
INSERT INTO people VALUES (1, 'Ada'), (2, 'Grace');
CREATE TABLE pairs (a INTEGER, b INTEGER, c INTEGER, PRIMARY KEY (a, b));
CREATE TABLE wide (id INTEGER PRIMARY KEY, a INTEGER, b INTEGER);
CREATE TABLE keys (id INTEGER PRIMARY KEY);
CREATE TABLE keyless (a INTEGER);
"""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database file to be copied."""
    file = tmp_path_factory.mktemp("prepared") / "people.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript(TABLES)
    return file


@pytest.fixture
def packages(prepared: Path, tmp_path: Path) -> Iterator[tuple[Package, Package, list[Database]]]:
    files = [shutil.copy(prepared, tmp_path / name) for name in ("theirs.db", "ours.db")]
    theirs, ours = databases = [Database(f"sqlite:///{file}") for file in files]
    yield Package(azure_functions_db, theirs.url), Package(holdfast, ours.url), databases
    for database in databases:
        database.close()


def _outcome(package: Package, database: Database, scenario: Scenario) -> tuple[object, object]:
    """Return what came back or was raised, and what the tables hold afterwards."""
    try:
        result: object = scenario(package)
    except Exception as error:
        result = type(error).__name__
    if callable(result):
        result = "decorated"
    if isinstance(result, (package.api.DbReader, package.api.DbWriter)):
        result = "made"
    tables = ("people", "pairs", "wide", "keys")
    return result, [database.rows(f"SELECT * FROM {table} ORDER BY 1") for table in tables]


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name not in DIFFERENT])
def test_the_outcome_is_the_same(packages: Any, name: str) -> None:
    theirs, ours, databases = packages
    wanted = _outcome(theirs, databases[0], SCENARIOS[name])
    assert _outcome(ours, databases[1], SCENARIOS[name]) == wanted


@pytest.mark.parametrize("name", DIFFERENT)
def test_a_deliberate_difference_is_still_one(packages: Any, name: str) -> None:
    theirs, ours, databases = packages
    assert _outcome(ours, databases[1], SCENARIOS[name]) != _outcome(theirs, databases[0], SCENARIOS[name])


def test_metadata_and_signatures_of_decorated_handlers_are_the_same() -> None:
    def handler(req: int, row: object, out: object, reader: object, writer: object) -> None: ...

    described = []
    for package in (azure_functions_db, holdfast):
        db = package.DbBindings()
        first = db.input("row", url="%DB_URL%", table="t", pk={"id": 1}, model=Row)(handler)
        both = db.output("out", url="%DB_URL%", table="t")(first)
        reading = db.inject_reader("reader", url="%DB_URL%")(handler)
        writing = db.inject_writer("writer", url="%DB_URL%", table="t")(reading)
        described.append(
            [
                (
                    package.get_db_metadata(each),
                    str(inspect.signature(each)),
                    getattr(each, "_azure_functions_metadata", None),
                )
                for each in (first, both, reading, writing)
            ]
        )
    assert described[0] == described[1]


def test_the_host_has_the_same_reserved_names() -> None:
    assert their_constants._RESERVED_ARGS == signatures.RESERVED


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (their_proxies._AsyncDbOutProxy, async_proxies.AsyncDbOut),
        (their_proxies._AsyncDbReaderProxy, async_proxies.AsyncDbReader),
        (their_proxies._AsyncDbWriterProxy, async_proxies.AsyncDbWriter),
        (their_proxies._AsyncTxWriterProxy, async_proxies.AsyncDbWriter),
    ],
)
def test_what_async_handlers_get_has_the_same_methods(theirs: Any, ours: Any) -> None:
    for name, method in vars(theirs).items():
        if name.startswith("_"):
            continue
        own = getattr(ours, name)
        assert inspect.iscoroutinefunction(method) == inspect.iscoroutinefunction(own), name
        wanted = [(one.name, one.kind, one.default) for one in inspect.signature(method).parameters.values()]
        assert [(one.name, one.kind, one.default) for one in inspect.signature(own).parameters.values()] == wanted, name
