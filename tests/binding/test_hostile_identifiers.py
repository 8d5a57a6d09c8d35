"""Names that are reserved words, quotes, statements or placeholders: they work exactly, or they are refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from sqlalchemy.exc import DBAPIError

from holdfast import ConfigurationError, DbError
from tests.binding.databases import Database

SIGNS = "\"'`;:%?$@#&|~^*+-=<>,./\\!()[]{} _\t\n\r\u00a0\u200b\u202eaAbPCZ0ßéжΩ日本ﬁ"
WORDS = [
    *("select", "order", "group", "table", "user", "values", "key", "default", "null", "primary", "FROM", "Where"),
    *("excluded", "incoming", "kept", "new", "rowid", "oid", "ctid", "holdfast_key_id", "data", "pk", "schema"),
    *(
        "a b",
        "a_b",
        "a.b",
        "a%b",
        "aPb",
        "a:b",
        "aCb",
        "a(b",
        "aAb",
        "a)b",
        "aZb",
        "a[b",
        "a]b",
        "%s",
        "%(a)s",
        ":a",
        "?",
    ),
    *("%%", "%%s", "a%%b", "''", '""', "``", "[]", "--", "/*", "*/", "\\", "\\'", "$1", "@x", "{a}", "$$", "a__1"),
    *("x'; DROP TABLE canary; --", 'x"; DROP TABLE canary; --', "x`; DROP TABLE canary; --", "x]; DROP TABLE canary--"),
    *("x) VALUES (1); DROP TABLE canary; --", "VALUES (%s)", "ON DUPLICATE KEY UPDATE", "RETURNING", "ON CONFLICT"),
]
NAMES = st.one_of(st.sampled_from(WORDS), st.text(SIGNS, min_size=1, max_size=12))
FOUR_NAMES = st.lists(NAMES, min_size=4, max_size=4, unique_by=lambda name: name.casefold())
HOSTILE = settings(
    deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
FEWER = settings(HOSTILE, max_examples=8)


@pytest.fixture
def guarded(database: Database) -> Database:
    database.execute("CREATE TABLE canary (alive integer)")
    database.execute("INSERT INTO canary VALUES (1)")
    return database


@HOSTILE
@given(table=NAMES, columns=FOUR_NAMES)
@example(table='"; DROP TABLE canary; --', columns=["a b", "a_b", "a%b", "aPb"])
@example(table="a%b", columns=["order", "%s", ":x", "VALUES (%s)"])
@example(table='it\'s `so` [called] "it"', columns=["id", "holdfast_key_id", "a%%b", "select"])
@example(table="t\n", columns=["a\n", "a", "b", "b\n"])
@example(table="Excluded", columns=["excluded", "a", "b", "c"])
def test_a_name_works_exactly_or_is_refused(guarded: Database, table: str, columns: list[str]) -> None:
    assume(table.casefold() != "canary")
    try:
        made = ", ".join(f"{guarded.quoted(name)} integer" for name in columns)
        guarded.raw(
            f"CREATE TABLE {guarded.quoted(table)} ({made}, PRIMARY KEY ({guarded.quoted(columns[0])}, "
            f"{guarded.quoted(columns[1])}))"
        )
    except (guarded.driver_error, DBAPIError):  # the database itself will not have it
        _must_be_refused(guarded, table)
        return
    try:
        _every_operation(guarded, table, columns)
    except DbError:
        beyond_sqlalchemy = {"mysql": ("`", "\n"), "sqlite": ("%(",), "postgresql": ()}[guarded.kind]
        assert any(part in "".join([table, *columns]) for part in beyond_sqlalchemy)
    finally:
        guarded.raw(f"DROP TABLE {guarded.quoted(table)}")
        assert guarded.rows("SELECT alive FROM canary") == [(1,)]


def _every_operation(database: Database, table: str, columns: list[str]) -> None:
    key, other_key, first, second = columns
    writer, reader = database.writer(table), database.reader(table)

    def row(*values: int) -> dict[str, object]:
        return dict(zip(columns, values, strict=True))

    def pk(*values: int) -> dict[str, object]:
        return {key: values[0], other_key: values[1]}

    writer.insert(data=row(1, 2, 3, 4))
    writer.insert_many(rows=[row(5, 6, 7, 8), row(9, 10, 11, 12)])
    assert _stored(database, table) == [(1, 2, 3, 4), (5, 6, 7, 8), (9, 10, 11, 12)]
    assert reader.get(pk=pk(5, 6)) == row(5, 6, 7, 8)

    if table.lower() == "excluded" and database.kind != "mysql":
        with pytest.raises(ConfigurationError, match="no upsert into a table called"):
            writer.upsert(data=row(1, 2, 30, 40), conflict_columns=[key, other_key])
        return
    writer.upsert(data=row(1, 2, 30, 40), conflict_columns=[key, other_key])
    writer.upsert_many(rows=[row(5, 6, 70, 80), row(13, 14, 15, 16)], conflict_columns=[other_key, key])
    assert _stored(database, table) == [(1, 2, 30, 40), (5, 6, 70, 80), (9, 10, 11, 12), (13, 14, 15, 16)]

    writer.update(data={first: 33}, pk=pk(1, 2))
    writer.update(data=row(99, 98, 97, 96), pk=pk(9, 10))
    writer.update_many(rows=[{second: 44, key: 1, other_key: 2}, {second: 88, key: 5, other_key: 6}])
    assert _stored(database, table) == [(1, 2, 33, 44), (5, 6, 70, 88), (13, 14, 15, 16), (99, 98, 97, 96)]

    writer.delete(pk=pk(5, 6))
    writer.delete_many(pks=[pk(13, 14), pk(99, 98)])
    assert _stored(database, table) == [(1, 2, 33, 44)]
    with pytest.raises(ConfigurationError, match=r"has no column\(s\)"):
        writer.insert(data=row(1, 1, 1, 1) | {first + "'": 1})


def _stored(database: Database, table: str) -> list[tuple[Any, ...]]:
    with database.outside.connect() as connection:
        cursor = connection.connection.cursor()
        cursor.execute(f"SELECT * FROM {database.quoted(table)} ORDER BY 1")
        return [tuple(row) for row in cursor.fetchall()]


@FEWER
@given(name=NAMES)
@example(name="canary; DROP TABLE canary")
def test_a_name_that_is_not_there_is_refused(guarded: Database, name: str) -> None:
    assume(name.casefold() != "canary")
    _must_be_refused(guarded, name)
    with pytest.raises(ConfigurationError, match=r"has no column\(s\)"):
        guarded.writer("canary").insert(data={name: 1})
    with pytest.raises(ConfigurationError, match=r"has no column\(s\) .* \(conflict_columns\)"):
        guarded.writer("canary").upsert(data={"alive": 1}, conflict_columns=[name])
    assert guarded.rows("SELECT alive FROM canary") == [(1,)]


def _must_be_refused(database: Database, table: str) -> None:
    with pytest.raises(DbError) as caught:
        database.writer(table).insert(data={"alive": 2})
    assert isinstance(caught.value, DbError)
    with pytest.raises(DbError):
        database.reader(table).get(pk={"alive": 1})
    assert database.rows("SELECT alive FROM canary") == [(1,)]


@FEWER
@given(schema=NAMES)
@example(schema='"; DROP TABLE canary; --')
def test_a_schema_that_is_not_there_is_refused(guarded: Database, schema: str) -> None:
    assume(schema.casefold() not in ("main", "temp", "public"))
    with pytest.raises(DbError):
        guarded.writer("canary", schema=schema).insert(data={"alive": 2})
    assert guarded.rows("SELECT alive FROM canary") == [(1,)]


@FEWER
@given(schema=NAMES.filter(lambda name: not name.startswith("pg_")), table=NAMES)
def test_a_hostile_schema_works(postgres: Database, schema: str, table: str) -> None:
    where = f"{postgres.quoted(schema)}.{postgres.quoted(table)}"
    postgres.raw(f"CREATE SCHEMA {postgres.quoted(schema)}")
    postgres.raw(f"CREATE TABLE {where} (id integer PRIMARY KEY, n integer)")
    postgres.writer(table, schema=schema).insert_many(rows=[{"id": 1, "n": 0}])
    postgres.writer(table, schema=schema).update_many(rows=[{"id": 1, "n": 2}])
    assert postgres.reader(table, schema=schema).get(pk={"id": 1}) == {"id": 1, "n": 2}
    postgres.raw(f"DROP SCHEMA {postgres.quoted(schema)} CASCADE")
