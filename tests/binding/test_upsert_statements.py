"""Upserts as each dialect is asked for them.

There is no SQL Server at hand: its MERGE is compiled, and run on PostgreSQL, which knows MERGE but not the lock hint.
"""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Column, Integer, MetaData, String, Table, Unicode, event
from sqlalchemy.engine import Dialect, make_url

from holdfast import ConfigurationError
from holdfast.binding.upsert import upsert_statement
from tests.binding.databases import Database

HINT = " WITH (HOLDLOCK)"


def _table(*columns: str, name: str = "stock", schema: str | None = None) -> Table:
    return Table(
        name, MetaData(), *(Column(each, Integer, primary_key=each == "id") for each in columns), schema=schema
    )


def _dialect(name: str) -> Dialect:
    make: Any = make_url(f"{name}://").get_dialect()
    made: Dialect = make(paramstyle="qmark") if name.startswith("mssql") else make()
    return made


SQL_SERVER = _dialect("mssql+pyodbc")


def _compiled(table: Table, conflict: list[str], dialect: Dialect) -> Any:
    statement: Any = upsert_statement(table, table.c.keys(), conflict, dialect)
    return statement.compile(dialect=dialect)


def _merge(table: Table, conflict: list[str]) -> Any:
    return _compiled(table, conflict, SQL_SERVER)


def test_sql_server_merges_one_row_under_a_lock_on_its_key() -> None:
    assert str(_merge(_table("id", "amount"), ["id"])) == (
        "MERGE INTO stock WITH (HOLDLOCK) AS kept "
        "USING (VALUES (?, ?)) AS incoming (id, amount) ON kept.id = incoming.id "
        "WHEN MATCHED THEN UPDATE SET amount = incoming.amount "
        "WHEN NOT MATCHED THEN INSERT (id, amount) VALUES (incoming.id, incoming.amount);"
    )


def test_sql_server_goes_by_every_conflict_column() -> None:
    said = str(_merge(_table("shop", "item", "amount"), ["shop", "item"]))
    assert "ON kept.shop = incoming.shop AND kept.item = incoming.item WHEN MATCHED" in said
    assert "UPDATE SET amount = incoming.amount WHEN" in said


def test_sql_server_with_nothing_to_update_only_inserts() -> None:
    assert str(_merge(_table("id"), ["id"])) == (
        "MERGE INTO stock WITH (HOLDLOCK) AS kept USING (VALUES (?)) AS incoming (id) ON kept.id = incoming.id "
        "WHEN NOT MATCHED THEN INSERT (id) VALUES (incoming.id);"
    )


def test_sql_server_gets_reserved_and_hostile_names_in_brackets() -> None:
    table = _table("id", "order", "a]; DROP TABLE x--", name="group", schema="my schema")
    said = str(_merge(table, ["id"]))
    assert said.startswith("MERGE INTO [my schema].[group] WITH (HOLDLOCK) AS kept ")
    assert "(id, [order], [a]]; DROP TABLE x--])" in said
    assert "UPDATE SET [order] = incoming.[order], [a]]; DROP TABLE x--] = incoming.[a]]; DROP TABLE x--] WHEN" in said


def test_sql_server_gets_each_row_in_the_order_of_its_columns() -> None:
    assert _merge(_table("id", "order", "a b"), ["id"]).positiontup == ["id", "order", "a b"]


def test_sql_server_values_have_the_types_of_their_columns() -> None:
    table = Table("names", MetaData(), Column("id", Integer, primary_key=True), Column("name", Unicode(20)))
    binds = _merge(table, ["id"]).binds
    assert isinstance(binds["name"].type, Unicode)
    assert isinstance(binds["id"].type, Integer)


def test_sql_server_needs_the_conflict_columns_in_the_row() -> None:
    with pytest.raises(ConfigurationError, match=r"must hold the conflict_columns, but id is missing"):
        upsert_statement(_table("id", "amount"), ["amount"], ["id"], SQL_SERVER)


def test_a_merge_means_insert_or_update(postgres: Database) -> None:
    name = 'it;em "n%me" :x'
    postgres.raw(f"CREATE TABLE stock (id integer PRIMARY KEY, {postgres.quoted(name)} varchar(20))")
    postgres.execute("INSERT INTO stock VALUES (1, 'old')")
    table = Table("stock", MetaData(), Column("id", Integer, primary_key=True), Column(name, String(20)))
    merge = upsert_statement(table, ["id", name], ["id"], SQL_SERVER)
    only_insert = upsert_statement(table, ["id"], ["id"], SQL_SERVER)

    @event.listens_for(postgres.engine, "before_cursor_execute", retval=True)
    def without_hint(
        _connection: object, _cursor: object, statement: str, values: object, _context: object, _many: bool
    ) -> tuple[str, object]:
        return statement.replace(HINT, ""), values

    with postgres.engine.begin() as connection:
        connection.execute(merge, [{"id": 1, name: "new"}, {"id": 2, name: "two"}])
        connection.execute(only_insert, [{"id": 1}, {"id": 3}])
    assert postgres.rows("SELECT * FROM stock ORDER BY id") == [(1, "new"), (2, "two"), (3, None)]


@pytest.mark.parametrize("name", ["postgresql+psycopg", "sqlite"])
def test_on_conflict_updates_what_the_row_brings(name: str) -> None:
    dialect = _dialect(name)
    said = str(_compiled(_table("id", "amount"), ["id"], dialect))
    assert said.endswith("ON CONFLICT (id) DO UPDATE SET amount = excluded.amount")
    assert str(_compiled(_table("id"), ["id"], dialect)).endswith("ON CONFLICT (id) DO NOTHING")


def test_on_duplicate_key_updates_what_the_row_brings() -> None:
    dialect = _dialect("mysql+pymysql")
    guard = "id = if(18446744073709551615 + if(stock.id <=> VALUES(id), 0, 1) > 0, stock.id, stock.id)"
    updates = f"ON DUPLICATE KEY UPDATE {guard}"
    assert str(_compiled(_table("id", "amount"), ["id"], dialect)).endswith(f"{updates}, amount = VALUES(amount)")
    assert str(_compiled(_table("id"), ["id"], dialect)).endswith(updates)


def test_a_dialect_without_upsert_is_one_clear_error() -> None:
    with pytest.raises(ConfigurationError) as caught:
        upsert_statement(_table("id", "amount"), ["id", "amount"], ["id"], _dialect("oracle"))
    assert str(caught.value) == (
        "Upsert is not supported for dialect 'oracle'. Supported: postgresql, sqlite, mysql, mariadb, mssql. Use "
        "insert() and update() in a transaction()."
    )


def test_a_writer_on_a_dialect_without_upsert_sends_nothing(sqlite: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    sqlite.execute("CREATE TABLE stock (id integer PRIMARY KEY)")
    monkeypatch.setattr(sqlite.engine.dialect, "name", "firebird")
    writer = sqlite.writer("stock")
    with pytest.raises(ConfigurationError, match="not supported for dialect 'firebird'"):
        writer.upsert(data={"id": 1}, conflict_columns=["id"])
    with pytest.raises(ConfigurationError, match="not supported for dialect 'firebird'"), writer.transaction():
        writer.upsert_many(rows=[{"id": 1}], conflict_columns=["id"])
    assert sqlite.rows("SELECT * FROM stock") == []
