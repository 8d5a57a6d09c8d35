"""A cursor of any type survives the checkpoint: every row comes exactly once, in the database's own order."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import event, text
from sqlalchemy.engine import Engine
from sqlalchemy.exc import IntegrityError

from holdfast import DbConfig, EngineProvider, RowChange, SqlAlchemySource
from holdfast.core.cursor import KeysetCursor, parse_cursor
from holdfast.core.errors import CursorSerializationError
from holdfast.core.events import RowBatch
from holdfast.core.types import JsonObject
from holdfast.core.values import from_json, to_json

BATCH_SIZE = 2
MOST_ROWS = 7

against_a_server = settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
embedded = settings(max_examples=40, deadline=None)


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A type a cursor column can have, and values for it."""

    declared: str
    values: st.SearchStrategy[Any]

    def __str__(self) -> str:
        return self.declared


def naive(first_year: int = 1, last_year: int = 9999) -> st.SearchStrategy[datetime]:
    """Times without zone, often equal in their first digits."""
    first, last = date(first_year, 1, 1), date(last_year, 12, 31)
    return st.builds(datetime.combine, st.dates(first, last) | st.just(date(2026, 3, 1)), st.times())


zones = st.builds(
    lambda minutes: timezone(timedelta(minutes=minutes)), st.integers(-14 * 4, 14 * 4).map(lambda n: n * 15)
)
aware = st.builds(lambda moment, zone: moment.replace(tzinfo=zone), naive(2, 9998), zones)
texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6)
plain_texts = st.text("abcAZ09 é", max_size=5)
lsns = st.builds(lambda high, low: f"{high:X}/{low:X}", st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
intervals = st.timedeltas(timedelta(days=-400_000), timedelta(days=400_000))
calendar = st.builds(
    lambda years, months, days, seconds: f"{years} years {months} mons {days} days {seconds} secs",
    *(st.integers(-3, 3), st.integers(-14, 14), st.integers(-400, 400), st.decimals(-99, 99, places=6)),
)
small = st.integers(-(2**31), 2**31 - 1)
large = st.integers(-(2**63), 2**63 - 1)
floats = st.floats(allow_nan=False, allow_infinity=False)

POSTGRES = (
    ColumnType("timestamptz", aware),
    ColumnType("timestamptz(3)", aware),
    ColumnType("timestamp", naive()),
    ColumnType("date", st.dates()),
    ColumnType("time", st.times()),
    ColumnType("timetz", st.times(timezones=zones)),
    ColumnType("interval", intervals),
    ColumnType("interval", calendar),
    ColumnType("numeric", st.decimals(-(10**20), 10**20) | st.sampled_from([Decimal("inf"), Decimal("NaN")])),
    ColumnType("numeric(20, 6)", st.decimals(-(10**13), 10**13, places=6)),
    ColumnType("uuid", st.uuids()),
    ColumnType("bytea", st.binary(max_size=6)),
    ColumnType("text", texts),
    ColumnType("varchar(9)", texts),
    ColumnType("char(5)", plain_texts),
    ColumnType("smallint", st.integers(-(2**15), 2**15 - 1)),
    ColumnType("int", small),
    ColumnType("bigint", large),
    ColumnType("float8", floats | st.sampled_from([math.inf, -math.inf])),
    ColumnType("real", st.floats(width=32, allow_nan=False)),
    ColumnType("bool", st.booleans()),
    ColumnType("xid8", st.integers(0, 2**64 - 1).map(str)),
    ColumnType("pg_lsn", lsns),
    ColumnType("mood", st.sampled_from(["sad", "ok", "happy"])),
)
MARIADB = (
    ColumnType("DATETIME(6)", naive(1000)),
    ColumnType("DATETIME(0)", naive(1000, 9998).map(lambda moment: moment.replace(microsecond=0))),
    ColumnType("TIMESTAMP(6)", naive(1971, 2037)),
    ColumnType("DATE", st.dates(date(1000, 1, 1))),
    ColumnType("TIME(6)", st.timedeltas(timedelta(hours=-838), timedelta(hours=838))),
    ColumnType("DECIMAL(30, 10)", st.decimals(-(10**19), 10**19, places=10)),
    ColumnType("UUID", st.uuids(version=4).map(str)),
    ColumnType("VARBINARY(6)", st.binary(max_size=6)),
    ColumnType("VARCHAR(6)", texts),
    ColumnType("CHAR(5)", plain_texts),
    ColumnType("INT", small),
    ColumnType("BIGINT", large),
    ColumnType("BIGINT UNSIGNED", st.integers(0, 2**64 - 1)),
    ColumnType("DOUBLE", floats),
    ColumnType("FLOAT", st.floats(width=32, allow_nan=False, allow_infinity=False)),
    ColumnType("BOOL", st.booleans()),
    ColumnType("ENUM('sad', 'ok', 'happy')", st.sampled_from(["sad", "ok", "happy"])),
    ColumnType("SET('b', 'a')", st.sampled_from(["a", "b", "b,a", ""])),
)
SQLITE = (
    ColumnType("TIMESTAMP", naive().map(lambda moment: moment.isoformat(sep=" "))),
    ColumnType("TEXT", naive().map(lambda moment: moment.isoformat(timespec="milliseconds") + "Z")),
    ColumnType("DATE", st.dates().map(str)),
    ColumnType("TIME", st.times().map(lambda moment: moment.isoformat(timespec="microseconds"))),
    ColumnType("NUMERIC", st.decimals(-(10**13), 10**13, places=6).map(str)),
    ColumnType("CHAR(32)", st.uuids().map(lambda value: value.hex)),
    ColumnType("BLOB", st.binary(max_size=6)),
    ColumnType("TEXT", texts),
    ColumnType("INTEGER", large),
    ColumnType("REAL", floats),
    ColumnType("BOOLEAN", st.booleans()),
    ColumnType("", st.one_of(large, floats, texts, st.binary(max_size=3))),
)


class Rows:
    """A table with a column of one type, and what of it a source delivers in small batches."""

    def __init__(self, url: str, column: ColumnType) -> None:
        self.provider = EngineProvider()
        self.url = url
        self.column = column
        self.engine: Engine = self.provider.get_engine(DbConfig(connection_url=url))
        if self.engine.dialect.name == "postgresql":
            self.execute("CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy')")
        self.execute(f"CREATE TABLE items (id INT PRIMARY KEY, v {column.declared} NOT NULL)")
        self.execute("CREATE INDEX items_v ON items (v, id)")
        self.execute(f"CREATE TABLE keyed (n INT NOT NULL, v {column.declared} NOT NULL, PRIMARY KEY (n, v))")
        self.by_cursor = self._source("v", "id", table="items")
        self.by_query = self._source("v", "id", query="SELECT * FROM items")
        self.by_key = self._source("n", "v", table="keyed")

    def close(self) -> None:
        self.provider.dispose_all()

    def execute(self, statement: str) -> None:
        with self.engine.begin() as connection:
            connection.execute(text(statement))

    def fill(self, table: str, number: str, values: list[Any]) -> None:
        """Replace the table's rows; a value the database takes for one it has already is left out."""
        bound = f"CAST(:v AS {self.column.declared})" if self.engine.dialect.name == "postgresql" else ":v"
        insert = text(f"INSERT INTO {table} ({number}, v) VALUES (:at, {bound})")
        with self.engine.begin() as connection:
            connection.execute(text(f"DELETE FROM {table}"))
            for at, value in enumerate(values):
                with suppress(IntegrityError), connection.begin_nested():
                    connection.execute(insert, {"at": at if number == "id" else at % 2, "v": value})

    def in_order(self, statement: str) -> list[Any]:
        with self.engine.connect() as connection:
            return list(connection.execute(text(statement)).scalars())

    def _source(self, cursor: str, key: str, *, table: str | None = None, query: str | None = None) -> SqlAlchemySource:
        return SqlAlchemySource(
            url=self.url,
            table=table,
            query=query,
            cursor_column=cursor,
            pk_columns=[key],
            horizon="none",
            engine_provider=self.provider,
        )


def delivered(source: SqlAlchemySource, most: int) -> list[RowChange]:
    """Return every event the source delivers, in batches whose checkpoints go through JSON."""
    checkpoint: JsonObject = {}
    events: list[RowChange] = []
    while len(events) <= most:
        found = source.fetch_changes(json.loads(json.dumps(checkpoint)), BATCH_SIZE)
        if isinstance(found.records, RowBatch):
            events += found.records.events()
        if found.next_checkpoint is None:
            break
        checkpoint = found.next_checkpoint
    return events


def ids_of(events: list[RowChange]) -> list[object]:
    return [event.after["id"] for event in events if event.after]


def as_the_cursor(rows: Rows, values: list[Any]) -> None:
    rows.fill("items", "id", values)
    expected = rows.in_order("SELECT id FROM items ORDER BY v, id")
    assert ids_of(delivered(rows.by_cursor, len(expected))) == expected
    assert ids_of(delivered(rows.by_query, len(expected))) == expected


def as_the_key(rows: Rows, values: list[Any]) -> None:
    rows.fill("keyed", "n", values)
    [expected] = rows.in_order("SELECT COUNT(*) FROM keyed")
    events = delivered(rows.by_key, len(values))
    assert len(events) == expected
    assert len({event.event_id for event in events}) == expected


def check(url: str, column: ColumnType, chosen: settings) -> None:
    """Try lists of values as the cursor of a table, as the cursor of a query and as the key of a table."""
    rows = Rows(url, column)

    @chosen
    @given(st.lists(column.values, max_size=MOST_ROWS))
    def survives(values: list[Any]) -> None:
        as_the_cursor(rows, values)
        as_the_key(rows, values)

    try:
        survives()
    finally:
        rows.close()


@pytest.mark.parametrize("column", POSTGRES, ids=str)
def test_every_row_comes_once_in_order_on_postgres(column: ColumnType, postgres_url: str) -> None:
    check(postgres_url, column, against_a_server)


@pytest.mark.parametrize("column", MARIADB, ids=str)
def test_every_row_comes_once_in_order_on_mariadb(column: ColumnType, mariadb_url: str) -> None:
    check(mariadb_url, column, against_a_server)


@pytest.mark.parametrize("column", SQLITE, ids=str)
def test_every_row_comes_once_in_order_on_sqlite(column: ColumnType, sqlite_url: str) -> None:
    check(sqlite_url, column, embedded)


any_value = st.one_of(
    st.text(st.characters(codec="utf-8")),
    st.integers(),
    st.booleans(),
    st.floats(allow_nan=False),
    st.decimals(allow_nan=False),
    aware,
    naive(),
    st.dates(),
    st.times(),
    st.times(timezones=zones),
    st.timedeltas(),
    st.uuids(),
    st.binary(),
)


@given(any_value)
@example(datetime(2026, 3, 1, 12, 0, 0, 1, tzinfo=UTC))
@example(Decimal("1.500"))
@example(-0.0)
def test_a_value_comes_back_from_json_as_it_was(value: object) -> None:
    back = from_json(json.loads(json.dumps(to_json(value))))
    assert type(back) is type(value)
    assert back == value
    assert str(back) == str(value) or isinstance(value, datetime)


@given(any_value, st.lists(any_value, min_size=1, max_size=3))
def test_a_cursor_comes_back_from_json_as_it_was(value: object, keys: list[object]) -> None:
    cursor = KeysetCursor(value, tuple((f"key_{at}", key) for at, key in enumerate(keys)))
    assert parse_cursor(json.loads(json.dumps(cursor.to_json()))) == cursor


@pytest.mark.parametrize("value", [None, math.nan, object(), [1], {"a": 1}])
def test_a_value_without_a_place_in_an_order_is_refused(value: object) -> None:
    with pytest.raises(CursorSerializationError, match="cannot be a cursor or key"):
        to_json(value)


ROWS = 5000
READ = 2500

TABLES = {
    "sqlite_url": (
        "CREATE TABLE items (tenant TEXT NOT NULL, id INT NOT NULL, changed TEXT NOT NULL, PRIMARY KEY (tenant, id))",
        "INSERT INTO items WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n WHERE id < {rows}) "
        "SELECT 'tenant ' || id % 3, id, strftime('%Y-%m-%d %H:%M:%S', 1767225600 + id / 4, 'unixepoch') FROM n",
        "ANALYZE",
    ),
    "postgres_url": (
        "CREATE TABLE items (tenant TEXT NOT NULL, id BIGINT NOT NULL, changed {cursor} NOT NULL, "
        "PRIMARY KEY (tenant, id))",
        "INSERT INTO items SELECT 'tenant ' || id % 3, id, {value} FROM generate_series(1, {rows}) AS id",
        "ANALYZE items",
    ),
    "mariadb_url": (
        "CREATE TABLE items (tenant VARCHAR(20) NOT NULL, id BIGINT NOT NULL, changed DATETIME(6) NOT NULL, "
        "PRIMARY KEY (tenant, id))",
        "INSERT INTO items SELECT CONCAT('tenant ', seq % 3), seq, '2026-01-01' + INTERVAL seq DIV 4 SECOND "
        "FROM seq_1_to_{rows}",
        "ANALYZE TABLE items",
    ),
}
POSTGRES_CURSORS = {
    "timestamptz": "'2026-01-01'::timestamptz + (id / 4) * interval '1 second'",
    "xid8": "(id / 4)::text::xid8",
    "real": "(id / 4)::real",
}
KEYS = pytest.mark.parametrize("keys", [["id"], ["tenant", "id"]], ids=len)


def last_page(url: str, keys: list[str], database: str, **placed: object) -> tuple[Engine, str, Any]:
    """Read half of a large table, then one page more; return that page's statement and its parameters."""
    provider = EngineProvider()
    source = SqlAlchemySource(
        url=url, table="items", cursor_column="changed", pk_columns=keys, horizon="none", engine_provider=provider
    )
    engine = provider.get_engine(source._reading_config())
    with engine.begin() as connection:
        for statement in TABLES[database]:
            connection.execute(text(statement.format(rows=ROWS, **placed).replace(":", "\\:")))
        connection.execute(text(f"CREATE UNIQUE INDEX items_changed ON items (changed, {', '.join(keys)})"))
    found = source.fetch_changes({}, READ)
    assert found.next_checkpoint is not None
    seen: list[tuple[str, Any]] = []
    event.listen(engine, "before_cursor_execute", lambda *given: seen.append((given[2], given[3])))
    source.fetch_changes(found.next_checkpoint, 10)
    return engine, *seen[-1]


def explained(engine: Engine, explain: str, statement: str, parameters: Any) -> list[Any]:
    with engine.connect() as connection:
        rows = connection.exec_driver_sql(f"{explain} {statement}", parameters).all()
    engine.dispose()
    return list(rows)


@KEYS
@pytest.mark.parametrize("cursor", POSTGRES_CURSORS)
def test_a_page_is_read_through_the_index_on_postgres(cursor: str, keys: list[str], postgres_url: str) -> None:
    page = last_page(postgres_url, keys, "postgres_url", cursor=cursor, value=POSTGRES_CURSORS[cursor])
    plan = explained(page[0], "EXPLAIN (FORMAT JSON)", *page[1:])[0][0][0]["Plan"]
    scan = plan["Plans"][0]
    assert scan["Node Type"] in ("Index Scan", "Index Only Scan")
    assert scan["Index Name"] == "items_changed"
    assert "ROW(changed, " in scan["Index Cond"]
    assert "Filter" not in scan


@KEYS
def test_a_page_is_read_through_the_index_on_mariadb(keys: list[str], mariadb_url: str) -> None:
    page = last_page(mariadb_url, keys, "mariadb_url")
    [row] = explained(page[0], "EXPLAIN", *page[1:])
    assert (row.type, row.key) == ("range", "items_changed")
    assert "filesort" not in row.Extra


@KEYS
def test_a_page_is_read_through_the_index_on_sqlite(keys: list[str], sqlite_url: str) -> None:
    page = last_page(sqlite_url, keys, "sqlite_url")
    [row] = explained(page[0], "EXPLAIN QUERY PLAN", *page[1:])
    assert row.detail.startswith("SEARCH items USING")
    assert "items_changed" in row.detail
    assert f"((changed,{','.join(keys)})>" in row.detail
