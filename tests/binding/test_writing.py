"""Writing: one row or many, all or nothing, with as few statements as the driver allows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import event

from holdfast import ConfigurationError, DbConnectionError, DbWriter, WriteError
from tests.binding.databases import Database
from tests.binding.statements import sent_to

Row = dict[str, object]

STOCK = (
    "CREATE TABLE stock (shop integer, item varchar(20), amount integer NOT NULL, note text, PRIMARY KEY (shop, item))"
)
ALL = "SELECT shop, item, amount FROM stock ORDER BY shop, item"


@pytest.fixture
def stock(database: Database) -> Database:
    database.execute(STOCK)
    database.execute("INSERT INTO stock (shop, item, amount) VALUES (1, 'nut', 10), (1, 'bolt', 20), (2, 'nut', 30)")
    return database


def test_insert_update_delete_by_a_composite_key(stock: Database) -> None:
    writer = stock.writer("stock")
    writer.insert(data={"shop": 2, "item": "bolt", "amount": 40})
    writer.update(data={"amount": 11, "note": "counted"}, pk={"item": "nut", "shop": 1})
    writer.delete(pk={"shop": 2, "item": "nut"})
    assert stock.rows(ALL) == [(1, "bolt", 20), (1, "nut", 11), (2, "bolt", 40)]
    assert stock.value("SELECT note FROM stock WHERE shop = 1 AND item = 'nut'") == "counted"


def test_update_and_delete_of_a_row_that_is_not_there_do_nothing(stock: Database) -> None:
    writer = stock.writer("stock")
    writer.update(data={"amount": 1}, pk={"shop": 9, "item": "nut"})
    writer.delete(pk={"shop": 9, "item": "nut"})
    writer.update_many(rows=[{"shop": 9, "item": "nut", "amount": 1}])
    writer.delete_many(pks=[{"shop": 9, "item": "nut"}])
    assert len(stock.rows(ALL)) == 3


def test_update_may_change_the_key_itself(stock: Database) -> None:
    stock.writer("stock").update(data={"shop": 3, "item": "gear"}, pk={"shop": 1, "item": "nut"})
    assert stock.rows(ALL) == [(1, "bolt", 20), (2, "nut", 30), (3, "gear", 10)]


def test_upsert_inserts_or_updates(stock: Database) -> None:
    writer = stock.writer("stock")
    for amount in (1, 2):
        writer.upsert(data={"shop": 5, "item": "cog", "amount": amount}, conflict_columns=["shop", "item"])
    assert stock.rows("SELECT amount FROM stock WHERE shop = 5") == [(2,)]


def test_upsert_leaves_columns_alone_that_it_does_not_name(stock: Database) -> None:
    stock.execute("UPDATE stock SET note = 'keep me'")
    stock.writer("stock").upsert(data={"shop": 1, "item": "nut", "amount": 5}, conflict_columns=["shop", "item"])
    assert stock.rows("SELECT amount, note FROM stock WHERE shop = 1 AND item = 'nut'") == [(5, "keep me")]


def test_upsert_with_nothing_but_the_key_keeps_the_row_there_is(database: Database) -> None:
    database.execute("CREATE TABLE seen (id varchar(10) PRIMARY KEY)")
    for _ in range(2):
        database.writer("seen").upsert_many(rows=[{"id": "a"}, {"id": "b"}], conflict_columns=["id"])
    assert database.rows("SELECT id FROM seen ORDER BY id") == [("a",), ("b",)]


def test_upsert_by_a_unique_key_that_is_not_the_primary_one(database: Database) -> None:
    identity = {"postgresql": "serial", "mysql": "integer AUTO_INCREMENT", "sqlite": "INTEGER"}[database.kind]
    database.execute(f"CREATE TABLE users (id {identity} PRIMARY KEY, email varchar(40) NOT NULL UNIQUE, name text)")
    writer = database.writer("users")
    writer.upsert(data={"email": "ada@example.org", "name": "Ada"}, conflict_columns=["email"])
    writer.upsert(data={"email": "ada@example.org", "name": "Countess"}, conflict_columns=["email"])
    assert database.rows("SELECT email, name FROM users") == [("ada@example.org", "Countess")]


def test_upsert_without_a_unique_key_to_go_by_is_refused(stock: Database) -> None:
    writer = stock.writer("stock")
    with pytest.raises((WriteError, ConfigurationError), match=r"(?i)unique"):
        writer.upsert(data={"shop": 1, "item": "nut", "amount": 5}, conflict_columns=["amount"])
    assert len(stock.rows(ALL)) == 3


def test_of_two_rows_with_one_key_in_a_batch_the_last_wins(stock: Database) -> None:
    rows: list[Row] = [{"shop": 7, "item": "cog", "amount": amount} for amount in (1, 2, 3)]
    stock.writer("stock").upsert_many(rows=rows, conflict_columns=["shop", "item"])
    assert stock.rows("SELECT amount FROM stock WHERE shop = 7") == [(3,)]


def test_batches_do_what_single_writes_do(stock: Database) -> None:
    writer = stock.writer("stock")
    writer.insert_many(rows=[{"shop": 3, "item": str(n), "amount": n} for n in range(5)])
    writer.update_many(rows=[{"item": str(n), "amount": n * 10, "shop": 3} for n in range(1, 5)])
    writer.delete_many(pks=[{"item": "3", "shop": 3}, {"shop": 3, "item": "4"}])
    writer.upsert_many(
        rows=[{"shop": 3, "item": "2", "amount": -2}, {"shop": 3, "item": "9", "amount": 9}],
        conflict_columns=["item", "shop"],
    )
    assert stock.rows("SELECT item, amount FROM stock WHERE shop = 3 ORDER BY item") == [
        ("0", 0),
        ("1", 10),
        ("2", -2),
        ("9", 9),
    ]


def test_writing_nothing_touches_nothing(stock: Database) -> None:
    writer = DbWriter(url="postgresql://nobody@127.0.0.1:1/nowhere", table="nowhere")
    writer.insert_many(rows=[])
    writer.upsert_many(rows=[], conflict_columns=["id"])
    writer.update_many(rows=[])
    writer.delete_many(pks=[])
    with pytest.raises(DbConnectionError):
        writer.insert(data={"id": 1})
    writer.close()


def _batch(count: int) -> list[Row]:
    return [{"shop": 1000 + n, "item": "x", "amount": n} for n in range(count)]


Batch = Callable[[DbWriter, list[Row]], None]
BATCHES: dict[str, Batch] = {
    "insert_many": lambda writer, rows: writer.insert_many(rows=rows),
    "upsert_many": lambda writer, rows: writer.upsert_many(rows=rows, conflict_columns=["shop", "item"]),
    "update_many": lambda writer, rows: writer.update_many(rows=rows),
    "delete_many": lambda writer, rows: writer.delete_many(
        pks=[{"shop": row["shop"], "item": row["item"]} for row in rows]
    ),
}


@pytest.mark.parametrize("name", BATCHES)
def test_a_batch_is_handed_to_the_driver_in_one_piece(stock: Database, name: str) -> None:
    writer = stock.writer("stock")
    writer.insert(data={"shop": 999, "item": "x", "amount": 0})  # the table is looked up
    with sent_to(stock.engine) as sent:
        BATCHES[name](writer, _batch(500))
    is_a_list_of_keys = name == "delete_many" and stock.kind == "mysql"
    assert [each.rows for each in sent] == [1 if is_a_list_of_keys else 500]


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("insert_many", {"Com_insert": 1, "Com_update": 0, "Com_delete": 0}),
        ("upsert_many", {"Com_insert": 1, "Com_update": 0, "Com_delete": 0}),
        ("update_many", {"Com_insert": 0, "Com_update": 500, "Com_delete": 0}),
        ("delete_many", {"Com_insert": 0, "Com_update": 0, "Com_delete": 1}),
    ],
)
def test_a_batch_on_mariadb_is_one_statement_of_many_rows_unless_it_updates(
    mariadb: Database, name: str, sent: dict[str, int]
) -> None:
    mariadb.execute(STOCK)
    writer = mariadb.writer("stock")
    writer.insert(data={"shop": 999, "item": "x", "amount": 0})
    before = _sent_by_the_session(mariadb)
    BATCHES[name](writer, _batch(500))
    after = _sent_by_the_session(mariadb)
    assert {key: after[key] - before[key] for key in sent} == sent


def _sent_by_the_session(mariadb: Database) -> dict[str, int]:
    with mariadb.engine.connect() as watching:  # the pool has one session, so that it is the same each time
        found = watching.exec_driver_sql("SHOW SESSION STATUS LIKE 'Com\\_%%'")
        return {name: int(count) for name, count in found}


@pytest.mark.parametrize("key", ["id", "id, kind"])
def test_a_delete_takes_exactly_the_rows_it_names_however_many(database: Database, key: str) -> None:
    database.execute(
        f"CREATE TABLE marks (id integer, kind varchar(10) DEFAULT 'a''b' NOT NULL, at date, PRIMARY KEY ({key}))"
    )
    writer = database.writer("marks")
    writer.insert_many(rows=[{"id": number, "at": None} for number in range(2600)])
    rest: Row = {} if key == "id" else {"kind": "a'b"}
    writer.delete_many(
        pks=[{**rest, "id": number} for number in range(10, 2600)] + [{**rest, "id": 5}, {**rest, "id": 5}]
    )
    assert database.rows("SELECT id FROM marks ORDER BY id") == [(number,) for number in range(10) if number != 5]


def test_a_delete_of_many_is_all_or_nothing(database: Database) -> None:
    database.execute("CREATE TABLE marks (id integer PRIMARY KEY)")
    database.execute("CREATE TABLE uses (mark integer, FOREIGN KEY (mark) REFERENCES marks (id))")
    writer = database.writer("marks")
    writer.insert_many(rows=[{"id": number} for number in range(1500)])
    database.execute("INSERT INTO uses VALUES (1400)")
    if database.kind == "sqlite":
        event.listen(database.engine, "checkout", lambda opened, *_: opened.execute("PRAGMA foreign_keys = ON"))
    with pytest.raises(WriteError, match=r"(?i)foreign key"):
        writer.delete_many(pks=[{"id": number} for number in range(1500)])
    assert database.value("SELECT count(*) FROM marks") == 1500


def test_a_key_that_nobody_gives_is_left_to_the_database(database: Database) -> None:
    """Either it refuses the row, in one error and without a warning before it, or it has a way to make one."""
    database.execute("CREATE TABLE codes (code varchar(10) NOT NULL PRIMARY KEY, name text)")
    writer = database.writer("codes")
    said = r"(?i)into 'codes' failed: .*(null|default)"
    with pytest.raises(WriteError, match=said):
        writer.insert(data={"name": "x"})
    assert database.rows("SELECT * FROM codes") == []


def test_who_may_only_insert_can_insert(postgres: Database) -> None:
    """Asking for the key that the database has made would need the right to read it."""
    postgres.execute("CREATE TABLE notes (id serial PRIMARY KEY, body text)")
    postgres.execute("DROP ROLE IF EXISTS scribe")
    postgres.execute("CREATE ROLE scribe")
    postgres.execute("GRANT USAGE ON SCHEMA public TO scribe")
    postgres.execute("GRANT INSERT ON notes TO scribe")
    postgres.execute("GRANT USAGE ON SEQUENCE notes_id_seq TO scribe")
    event.listen(postgres.engine, "checkout", lambda opened, *_: opened.execute("SET ROLE scribe"))
    postgres.writer("notes").insert(data={"body": "one"})
    postgres.writer("notes").insert_many(rows=[{"body": "two"}, {"body": "three"}])
    assert postgres.rows("SELECT body FROM notes ORDER BY id") == [("one",), ("two",), ("three",)]
    postgres.execute("DROP OWNED BY scribe")
    postgres.execute("DROP ROLE scribe")


def test_a_batch_on_postgres_does_not_wait_for_each_row(postgres: Database) -> None:
    postgres.execute(STOCK)
    writer = postgres.writer("stock")
    writer.insert(data={"shop": 999, "item": "x", "amount": 0})
    waits = []
    with postgres.engine.connect() as connection:  # the pool has one session, so that it is the same later
        driver: Any = connection.connection.driver_connection
    plain = driver.wait

    def wait(*given: Any, **named: Any) -> Any:
        waits.append(given)
        return plain(*given, **named)

    driver.wait = wait
    BATCHES["upsert_many"](writer, _batch(500))
    del driver.wait
    assert len(waits) <= 5, "begin, all rows, commit"


@pytest.mark.parametrize("name", ["insert_many", "update_many"])
def test_a_batch_is_all_or_nothing(stock: Database, name: str) -> None:
    before = stock.rows("SELECT * FROM stock ORDER BY shop, item")
    rows: list[Row] = [{"shop": 1, "item": "new", "amount": 1}, {"shop": 1, "item": "nut", "amount": None}]
    if name == "update_many":
        rows[0]["item"] = "bolt"
    with pytest.raises(WriteError, match=r"(into|of) 'stock' failed: .*\. None of the \d+ rows was written\.$"):
        BATCHES[name](stock.writer("stock"), rows)
    assert stock.rows("SELECT * FROM stock ORDER BY shop, item") == before


UNEVEN: dict[str, tuple[Batch, list[Row]]] = {
    **{name: (BATCHES[name], _batch(2)) for name in ("insert_many", "upsert_many", "update_many")},
    "delete_many": (
        lambda writer, rows: writer.delete_many(pks=rows),
        [{"shop": 1, "item": n} for n in ("nut", "bolt")],
    ),
}


@pytest.mark.parametrize("name", UNEVEN)
def test_rows_with_different_columns_are_refused_before_anything_is_written(stock: Database, name: str) -> None:
    write, rows = UNEVEN[name]
    said = r"must all have the same columns, but row 3 of 3 has \(shop\) and row 1 has \(.*\)\. Nothing was written"
    with sent_to(stock.engine) as sent, pytest.raises(WriteError, match=said):
        write(stock.writer("stock"), [*rows, {"shop": 1}])
    assert sent == []


def test_a_tuple_of_rows_is_a_batch_too(stock: Database) -> None:
    stock.writer("stock").insert_many(rows=tuple(_batch(3)))  # type: ignore[arg-type]  # harmless
    assert stock.value("SELECT count(*) FROM stock WHERE shop >= 1000") == 3


def test_the_order_of_columns_does_not_matter(stock: Database) -> None:
    stock.writer("stock").insert_many(
        rows=[{"shop": 8, "item": "a", "amount": 1}, {"amount": 2, "item": "b", "shop": 8}]
    )
    assert stock.rows("SELECT item, amount FROM stock WHERE shop = 8 ORDER BY item") == [("a", 1), ("b", 2)]


def test_a_duplicate_key_is_a_write_error(stock: Database) -> None:
    with pytest.raises(WriteError, match=r"^The insert into 'stock' failed: .*\.$") as caught:
        stock.writer("stock").insert(data={"shop": 1, "item": "nut", "amount": 1})
    assert caught.value.__cause__ is not None
    assert "\n" not in str(caught.value)


BAD: dict[str, tuple[Callable[[DbWriter], None], str]] = {
    "insert of an unknown column": (
        lambda writer: writer.insert(data={"color": 1}),
        r"no column\(s\) 'color' \(data\)",
    ),
    "several unknown columns": (lambda writer: writer.insert(data={"b": 1, "a": 1}), r"no column\(s\) 'b', 'a'"),
    "a column that is no text": (lambda writer: writer.insert(data={1: 2}), r"no column\(s\) 1"),  # type: ignore[dict-item]  # what a caller without types may do
    "insert of what is no row": (lambda writer: writer.insert(data=[1]), "A row must be a dict, not list"),  # type: ignore[arg-type]  # see above
    "insert of what is no batch": (
        lambda writer: writer.insert_many(rows={"shop": 1}),  # type: ignore[arg-type]  # see above
        "must be a list of dicts, not dict",
    ),
    "insert of no column": (lambda writer: writer.insert(data={}), "data must not be empty"),
    "update of an unknown column": (
        lambda writer: writer.update(data={"color": 1}, pk={"shop": 1, "item": "nut"}),
        r"no column\(s\) 'color'",
    ),
    "update of no column": (lambda writer: writer.update(data={}, pk={"shop": 1, "item": "nut"}), "data must not be"),
    "update of what is no row": (
        lambda writer: writer.update(data=None, pk={"shop": 1, "item": "nut"}),  # type: ignore[arg-type]  # see above
        "data must be a dict of columns and their values, not NoneType",
    ),
    "update with what is no key": (
        lambda writer: writer.update(data={"amount": 1}, pk=None),  # type: ignore[arg-type]  # see above
        "pk must be a dict of columns and their values, not NoneType",
    ),
    "update with half a key": (
        lambda writer: writer.update(data={"amount": 1}, pk={"shop": 1}),
        r"The primary key of 'stock' is \(shop, item\), but pk has \(shop\)\. Give each key column and no other",
    ),
    "update_many with half a key": (
        lambda writer: writer.update_many(rows=[{"shop": 1, "amount": 1}]),
        r"is \(shop, item\), but pk has \(shop\)",
    ),
    "update_many that sets nothing": (
        lambda writer: writer.update_many(rows=[{"shop": 1, "item": "nut"}]),
        "nothing but the primary key",
    ),
    "delete with no key": (lambda writer: writer.delete(pk={}), r"is \(shop, item\), but pk has \(\)"),
    "delete with more than the key": (
        lambda writer: writer.delete(pk={"shop": 1, "item": "nut", "amount": 1}),
        r"but pk has \(shop, item, amount\)",
    ),
    "upsert of an unknown column": (
        lambda writer: writer.upsert(data={"color": 1}, conflict_columns=["shop", "item"]),
        r"no column\(s\) 'color' \(data\)",
    ),
    "upsert by an unknown column": (
        lambda writer: writer.upsert(data={"shop": 1}, conflict_columns=["color"]),
        r"no column\(s\) 'color' \(conflict_columns\)\. It has: shop, item, amount, note\.",
    ),
    "upsert by nothing": (
        lambda writer: writer.upsert(data={"shop": 1}, conflict_columns=[]),
        "conflict_columns must not be empty",
    ),
    "upsert by a text": (
        lambda writer: writer.upsert(data={"shop": 1}, conflict_columns="shop"),  # type: ignore[arg-type]  # see above
        r"conflict_columns must be a list of column names, as in \['id'\], not 'shop'",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_the_table_does_not_have_is_refused_before_it_is_sent(stock: Database, name: str) -> None:
    write, said = BAD[name]
    with sent_to(stock.engine) as sent, pytest.raises(ConfigurationError, match=said) as caught:
        write(stock.writer("stock"))
    assert sent == []
    assert "\n" not in str(caught.value)


def test_a_table_that_is_not_there_is_named_with_those_that_are(stock: Database) -> None:
    with pytest.raises(ConfigurationError, match=r"Table 'stok' not found in the database\. Tables there: stock\."):
        stock.writer("stok").insert(data={"shop": 1})
    with pytest.raises(ConfigurationError, match="table must not be empty"):
        stock.writer("")
    with pytest.raises(ConfigurationError, match="table must not be empty"):
        DbWriter(url=stock.url, table=None)  # type: ignore[arg-type]  # what a caller without types may do


def test_no_repr_shows_a_password() -> None:
    assert "s3cret" not in repr(DbWriter(url="postgresql://app:s3cret@db/shop?sslpassword=s3cret", table="t"))
