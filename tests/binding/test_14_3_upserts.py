"""An upsert updates the row with the same conflict columns, and no other that it meets by another unique key."""

from __future__ import annotations

from decimal import Decimal

import pytest

from holdfast import ConfigurationError, WriteError
from tests.binding.databases import Database

ALL = "SELECT id, email, name FROM users ORDER BY id"
KEPT = [(1, "ada@x", "Ada"), (2, "bob@x", "Bob")]


@pytest.fixture
def users(database: Database) -> Database:
    database.execute("CREATE TABLE users (id integer PRIMARY KEY, email varchar(40), name varchar(40))")
    database.execute("CREATE UNIQUE INDEX users_email ON users (email)")
    database.execute("INSERT INTO users VALUES (1, 'ada@x', 'Ada'), (2, 'bob@x', 'Bob')")
    return database


OVERWRITING = {
    "another id": {"id": 3, "email": "bob@x", "name": "Eve"},
    "both ids there": {"id": 1, "email": "bob@x", "name": "Eve"},
}


@pytest.mark.parametrize("case", OVERWRITING)
def test_14_3_a_row_met_by_another_unique_key_is_not_overwritten(users: Database, case: str) -> None:
    writer = users.writer("users")
    row = OVERWRITING[case]
    with pytest.raises(WriteError):
        writer.upsert(data=row, conflict_columns=["id"])
    with pytest.raises(WriteError):
        writer.upsert_many(rows=[{"id": 9, "email": "new@x", "name": "New"}, row], conflict_columns=["id"])
    assert users.rows(ALL) == KEPT
    writer.upsert(data={"id": 2, "email": "bob@y", "name": "Bob"}, conflict_columns=["id"])
    writer.upsert(data={"id": 3, "email": "bob@x", "name": "Eve"}, conflict_columns=["id"])
    assert users.rows(ALL) == [(1, "ada@x", "Ada"), (2, "bob@y", "Bob"), (3, "bob@x", "Eve")]


def test_14_3_the_error_says_which_columns_it_went_by(mariadb: Database) -> None:
    mariadb.execute("CREATE TABLE users (id integer PRIMARY KEY, email varchar(40) UNIQUE)")
    mariadb.execute("INSERT INTO users VALUES (2, 'bob@x')")
    with pytest.raises(WriteError, match=r"another unique key.* other conflict_columns \(id\).* Nothing was written"):
        mariadb.writer("users").upsert(data={"id": 3, "email": "bob@x"}, conflict_columns=["id"])


def test_14_3_a_doomed_upsert_dooms_its_transaction(users: Database) -> None:
    writer = users.writer("users")

    def go_on() -> None:
        with writer.transaction():
            writer.insert(data={"id": 9, "email": "new@x", "name": "New"})
            with pytest.raises(WriteError):
                writer.upsert(data=OVERWRITING["another id"], conflict_columns=["id"])

    with pytest.raises(WriteError, match="An earlier write"):
        go_on()
    assert users.rows(ALL) == KEPT


@pytest.mark.parametrize("mode", ["", "STRICT_TRANS_TABLES"])
def test_14_3_it_is_refused_in_every_mode_of_the_server_and_for_every_type(mariadb: Database, mode: str) -> None:
    mariadb.execute(
        "CREATE TABLE things (id uuid, at datetime(6), kind enum('a', 'b'), size decimal(5, 2), contents varbinary(9),"
        " n integer UNIQUE, PRIMARY KEY (id, at, kind, size, contents))"
    )
    url = f"{mariadb.url}&sql_mode={mode}"
    key = {
        "id": "6b3f3c1e-6f0e-5c0e-9a53-3a1d6f0c7d11",
        "at": "2024-05-01T10:30:01.000005",
        "kind": "b",
        "size": "1.25",
        "contents": b"\x00\xff",
    }
    with Database(url).writer("things") as writer:
        for n in (1, 2):
            writer.upsert(data={**key, "n": n}, conflict_columns=list(key))
        with pytest.raises(WriteError, match="another unique key"):
            writer.upsert(data={**key, "kind": "a", "n": 2}, conflict_columns=list(key))
        writer.close()
    assert mariadb.rows("SELECT kind, size, hex(contents), microsecond(at), n FROM things") == [
        ("b", Decimal("1.25"), "00FF", 5, 2)
    ]


def test_14_3_a_key_of_beginnings_is_no_conflict_key(mariadb: Database) -> None:
    mariadb.execute("CREATE TABLE things (id integer PRIMARY KEY, code varchar(40), n integer, UNIQUE (code(4)))")
    writer = mariadb.writer("things")
    writer.upsert(data={"id": 1, "code": "code-1", "n": 1}, conflict_columns=["id"])
    with pytest.raises(ConfigurationError, match=r"No unique key of 'things' has exactly the .* \(code\)"):
        writer.upsert(data={"id": 2, "code": "code-1", "n": 2}, conflict_columns=["code"])
    with pytest.raises(WriteError, match="or the same beginning"):
        writer.upsert(data={"id": 2, "code": "code-2", "n": 2}, conflict_columns=["id"])
    assert mariadb.rows("SELECT * FROM things") == [(1, "code-1", 1)]


def test_14_3_a_primary_key_of_beginnings_takes_no_row_for_another(mariadb: Database) -> None:
    mariadb.execute("CREATE TABLE things (code varchar(40), n integer, PRIMARY KEY (code(4)))")
    writer = mariadb.writer("things")
    for n in (1, 2):
        writer.upsert(data={"code": "code-1", "n": n}, conflict_columns=["code"])
    with pytest.raises(WriteError, match="or the same beginning"):
        writer.upsert(data={"code": "code-2", "n": 3}, conflict_columns=["code"])
    assert mariadb.rows("SELECT * FROM things") == [("code-1", 2)]


def test_14_3_tables_of_another_schema_and_odd_names_are_kept_apart_too(mariadb: Database) -> None:
    mariadb.execute("CREATE TABLE `or%der` (`a%b` integer PRIMARY KEY, `c d` integer UNIQUE)")
    writer = mariadb.writer("or%der", schema=str(mariadb.engine.url.database))
    writer.upsert_many(rows=[{"a%b": 1, "c d": 1}, {"a%b": 2, "c d": 2}], conflict_columns=["a%b"])
    with pytest.raises(WriteError, match="another unique key"):
        writer.upsert(data={"a%b": 3, "c d": 2}, conflict_columns=["a%b"])
