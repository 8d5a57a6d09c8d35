"""Writing by key: a key that is no key is refused, and one that has stopped being one changes nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast import ConfigurationError, DbWriter, WriteError
from tests.binding.databases import Database

ALL = "SELECT id, code, n FROM things ORDER BY id, code"
Write = Callable[[DbWriter], None]


@pytest.fixture
def things(database: Database) -> Database:
    database.execute("CREATE TABLE things (id integer PRIMARY KEY, code integer NOT NULL, n integer)")
    database.execute("INSERT INTO things VALUES (1, 1, 0), (2, 2, 0)")
    return database


def make_anew(database: Database) -> None:
    """Give the table another primary key, under which the old one names two rows."""
    database.execute("DROP TABLE things")
    database.execute("CREATE TABLE things (id integer NOT NULL, code integer PRIMARY KEY, n integer)")
    database.execute("INSERT INTO things VALUES (1, 1, 0), (1, 2, 0), (2, 3, 0)")


BY_THE_OLD_KEY: dict[str, Write] = {
    "update": lambda writer: writer.update(data={"n": 9}, pk={"id": 1}),
    "delete": lambda writer: writer.delete(pk={"id": 1}),
    "update_many": lambda writer: writer.update_many(rows=[{"id": 1, "n": 9}, {"id": 2, "n": 9}]),
    "delete_many": lambda writer: writer.delete_many(pks=[{"id": 1}, {"id": 2}]),
    "update_many with a miss": lambda writer: writer.update_many(rows=[{"id": n, "n": 9} for n in (1, 7, 8)]),
}


@pytest.mark.parametrize("name", BY_THE_OLD_KEY)
def test_a_key_that_names_several_rows_by_now_changes_none(things: Database, name: str) -> None:
    writer = things.writer("things")
    writer.update(data={"n": 0}, pk={"id": 1})  # the table is known from here on
    make_anew(things)
    with pytest.raises(ConfigurationError, match=r"The primary key of 'things' is \(code\), but pk has \((id)?\)"):
        BY_THE_OLD_KEY[name](writer)
    assert things.rows(ALL) == [(1, 1, 0), (1, 2, 0), (2, 3, 0)]


@pytest.mark.parametrize("name", BY_THE_OLD_KEY)
def test_nor_inside_a_transaction(things: Database, name: str) -> None:
    things.writer("things").update(data={"n": 0}, pk={"id": 1})
    make_anew(things)
    writer = things.writer("things")

    def go_on() -> None:
        with writer.transaction(), pytest.raises(ConfigurationError, match="primary key"):
            BY_THE_OLD_KEY[name](writer)

    with pytest.raises(WriteError, match="An earlier write"):
        go_on()
    assert things.rows(ALL) == [(1, 1, 0), (1, 2, 0), (2, 3, 0)]


WITHOUT_A_VALUE: dict[str, tuple[Write, str]] = {
    "upsert None": (
        lambda writer: writer.upsert(data={"id": None, "code": 5}, conflict_columns=["id"]),
        "The conflict column 'id' is None, so",
    ),
    "upsert nothing": (
        lambda writer: writer.upsert(data={"code": 5}, conflict_columns=["id"]),
        "The conflict column 'id' is missing, so",
    ),
    "upsert_many": (
        lambda writer: writer.upsert_many(
            rows=[{"id": 3, "code": 3}, {"id": None, "code": 4}], conflict_columns=["id"]
        ),
        "The conflict column 'id' is None in row 2 of 2",
    ),
    "update": (lambda writer: writer.update(data={"n": 1}, pk={"id": None}), "The key 'id' is None"),
    "update_many": (
        lambda writer: writer.update_many(rows=[{"id": 1, "n": 9}, {"id": None, "n": 9}]),
        "The key 'id' is None in row 2 of 2",
    ),
    "delete": (lambda writer: writer.delete(pk={"id": None}), "The key 'id' is None"),
    "delete_many": (
        lambda writer: writer.delete_many(pks=[{"id": 1}, {"id": None}]),
        "The key 'id' is None in row 2 of 2",
    ),
}


@pytest.mark.parametrize("name", WITHOUT_A_VALUE)
def test_a_key_without_a_value_is_refused(things: Database, name: str) -> None:
    write, said = WITHOUT_A_VALUE[name]
    with pytest.raises(ConfigurationError, match=said):
        write(things.writer("things"))
    assert things.rows(ALL) == [(1, 1, 0), (2, 2, 0)]


def test_a_table_without_a_key_is_not_told_to_query(database: Database) -> None:
    database.execute("CREATE TABLE loose (a integer, b integer)")
    writer = database.writer("loose")
    writes: list[Write] = [
        lambda writer: writer.update_many(rows=[{"a": 1, "b": 2}]),
        lambda writer: writer.update(data={"b": 1}, pk={"a": 1}),
        lambda writer: writer.delete(pk={"a": 1}),
    ]
    for write in writes:
        with pytest.raises(ConfigurationError, match=r"no primary key.* use insert\(\) or upsert\(\)"):
            write(writer)
