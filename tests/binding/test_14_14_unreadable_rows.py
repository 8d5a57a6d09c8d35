"""Line 14: a reader names row and column of what cannot be read, and a stream yields the rows before it."""

from __future__ import annotations

import pytest

from holdfast import QueryError
from tests.binding.databases import Database

TABLES = {
    "postgresql": "CREATE TABLE shops (id integer PRIMARY KEY, day date, closes time, lasts interval)",
    "mysql": "CREATE TABLE shops (id integer PRIMARY KEY, hours json, closes time)",
    "sqlite": "CREATE TABLE shops (id INTEGER PRIMARY KEY, day DATETIME, closes TEXT)",
}
GOOD = {
    "postgresql": "INSERT INTO shops VALUES (1, '2026-01-31', '23:59', '1 day'), (3, NULL, NULL, NULL)",
    "mysql": "INSERT INTO shops VALUES (1, '{}', '23:59'), (3, NULL, NULL)",
    "sqlite": "INSERT INTO shops VALUES (1, '2026-01-31', '23:59'), (3, NULL, NULL)",
}
BAD = {
    "postgresql": [
        ("INSERT INTO shops VALUES (2, NULL, '24:00')", "column 'closes' holds what Python has no value for"),
        ("INSERT INTO shops VALUES (2, 'infinity', NULL)", "column 'day' holds what Python has no value for"),
        ("INSERT INTO shops VALUES (2, '0044-03-15 BC', NULL)", "column 'day' holds what Python has no value for"),
        (
            "INSERT INTO shops VALUES (2, NULL, NULL, '-infinity')",  # by itself psycopg takes it for zero
            "column 'lasts' holds what Python has no value for",
        ),
    ],
    "mysql": [("INSERT INTO shops VALUES (2, 'no json', NULL)", "column 'hours' holds text that is no JSON")],
    "sqlite": [
        ("INSERT INTO shops VALUES (2, 1767225600, NULL)", "column 'day' holds a whole number that is no time"),
        ("INSERT INTO shops VALUES (2, 'soon', NULL)", "column 'day' holds text that is no time"),
        (
            "INSERT INTO shops VALUES (2, '2026-01-31 12:00:00.123456789', NULL)",
            "column 'day' holds a time with more than six digits of a second",
        ),
        ("INSERT INTO shops VALUES (2, NULL, CAST(x'47fc' AS TEXT))", "column 'closes' holds text that is no UTF-8"),
    ],
}


def insert(database: Database, statement: str) -> None:
    with database.outside.begin() as connection:
        if database.kind == "mysql":  # as a server does that was restored without its checks
            connection.exec_driver_sql("SET SESSION check_constraint_checks = 0")
        connection.exec_driver_sql(statement)
        if database.kind == "mysql":
            connection.exec_driver_sql("SET SESSION check_constraint_checks = 1")


def test_14_14_get_names_the_row_and_its_column(database: Database) -> None:
    database.raw(TABLES[database.kind])
    database.raw(GOOD[database.kind])
    reader = database.reader("shops")
    for statement, said in BAD[database.kind]:
        database.raw("DELETE FROM shops WHERE id = 2")
        insert(database, statement)
        with pytest.raises(QueryError, match=rf"^Row \{{'id': 2\}} of 'shops' cannot be read: its {said}"):
            reader.get(pk={"id": 2})
        assert reader.get(pk={"id": 1}), "the session reads on"
        assert reader.get(pk={"id": 3})


@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
def test_14_14_a_query_names_row_and_column_and_a_stream_yields_the_rows_before(
    request: pytest.FixtureRequest, kind: str
) -> None:
    """MariaDB's driver hands out as text what it cannot read."""
    database: Database = request.getfixturevalue(kind)
    database.raw(TABLES[database.kind])
    database.raw(GOOD[database.kind])
    statement, said = BAD[database.kind][-1 if kind == "sqlite" else 0]
    insert(database, statement)
    sql = "SELECT id, closes FROM shops ORDER BY id"
    reader = database.reader()
    told = rf"\(number 2\) cannot be read: its {said}"
    with pytest.raises(QueryError, match=told):
        reader.query(sql)
    for chunk_size in (1, 1000):
        before: list[object] = []
        with pytest.raises(QueryError, match=told):
            before.extend(row["id"] for row in reader.stream(sql, chunk_size=chunk_size))
        assert before == [1]
    with pytest.raises(QueryError, match=told.replace("number 2", "number 1")):
        next(reader.stream(sql.replace("ORDER", "WHERE id > 1 ORDER")))
    with pytest.raises(QueryError, match=told.replace("number 2", "number 1")):
        reader.scalar("SELECT closes FROM shops WHERE id = 2")
    assert len(reader.query("SELECT id, closes FROM shops WHERE id <> 2")) == 2
