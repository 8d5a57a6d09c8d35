"""Re-reading a window: late rows come once, delivered ones do not come again, and what is remembered stays bounded."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import text
from sqlalchemy.engine import Engine

from holdfast import DbConfig, EngineProvider, SqlAlchemySource
from holdfast.core.errors import SourceConfigurationError
from holdfast.core.types import JsonObject
from holdfast.trigger.sources.lookback import shifted_back

BACK = 10
"""How far a test's window reaches back, in units of its column."""


@dataclass(frozen=True, slots=True)
class WindowedColumn:
    """A column of one type, its value for a whole number, and the window in its unit."""

    declared: str
    value: Callable[[int], Any]
    lookback: timedelta | float = field(default=BACK)

    def __str__(self) -> str:
        return f"{self.declared} {self.value(1)}"


START = datetime(2026, 1, 1, 12, tzinfo=UTC)


def at(seconds: int) -> datetime:
    return START + timedelta(seconds=seconds)


def written(layout: str) -> Callable[[int], str]:
    return lambda seconds: at(seconds).strftime(layout)


def day(number: int) -> date:
    return date(2026, 1, 1) + timedelta(days=number)


DAYS = timedelta(days=BACK)
SQLITE = (
    WindowedColumn("INTEGER", int),
    WindowedColumn("REAL", float),
    WindowedColumn("TIMESTAMP", written("%Y-%m-%d %H:%M:%S")),
    WindowedColumn("TIMESTAMP", written("%Y-%m-%d %H:%M:%S.%f"), timedelta(seconds=BACK)),
    WindowedColumn("TEXT", written("%Y-%m-%dT%H:%M:%SZ")),
    WindowedColumn("TEXT", written("%Y-%m-%dT%H:%M:%S.250Z")),
    WindowedColumn("TEXT", written("%Y-%m-%d %H:%M:%S.250000+02:00")),
    WindowedColumn("TEXT", written("%Y-%m-%d %H:%M:%S.125-05:00")),
    WindowedColumn("DATE", lambda number: str(day(number)), DAYS),
    WindowedColumn("TEXT", lambda number: str(day(number)), DAYS),
)
POSTGRES = (
    WindowedColumn("timestamptz", at),
    WindowedColumn("timestamp", lambda seconds: at(seconds).replace(tzinfo=None)),
    WindowedColumn("date", day, DAYS),
    WindowedColumn("bigint", int),
    WindowedColumn("numeric(12, 2)", lambda number: Decimal(number)),
    WindowedColumn("float8", float),
    WindowedColumn("interval", lambda seconds: timedelta(seconds=seconds)),
)
MARIADB = (
    WindowedColumn("DATETIME(6)", lambda seconds: at(seconds).replace(tzinfo=None)),
    WindowedColumn("TIMESTAMP(6)", lambda seconds: at(seconds).replace(tzinfo=None)),
    WindowedColumn("DATE", day, DAYS),
    WindowedColumn("BIGINT", int),
    WindowedColumn("DOUBLE", float),
    WindowedColumn("DECIMAL(12, 2)", lambda number: Decimal(number)),
)

Row = tuple[int, int]
"""The number its cursor stands for, and its key."""


class Table:
    """Rows whose cursor the application writes, and a trigger with a window over them."""

    def __init__(self, url: str, column: WindowedColumn) -> None:
        self.provider = EngineProvider()
        self.url = url
        self.column = column
        self.engine: Engine = self.provider.get_engine(DbConfig(connection_url=url))
        self.execute(
            f"CREATE TABLE items (id INT PRIMARY KEY, number INT NOT NULL, changed {column.declared} NOT NULL)"
        )
        self.execute("CREATE INDEX items_changed ON items (changed, id)")
        self.clear()

    def close(self) -> None:
        self.provider.dispose_all()

    def execute(self, statement: str) -> None:
        with self.engine.begin() as connection:
            connection.execute(text(statement))

    def clear(self) -> None:
        self.execute("DELETE FROM items")
        self.checkpoint: JsonObject = {}
        self.delivered: Counter[Row] = Counter()
        self.newest: int | None = None
        self.keys = 0

    def write(self, numbers: list[int]) -> list[Row]:
        rows = [(number, self.keys + at) for at, number in enumerate(numbers)]
        self.keys += len(rows)
        insert = text("INSERT INTO items (id, number, changed) VALUES (:id, :number, :changed)")
        with self.engine.begin() as connection:
            for number, key in rows:
                connection.execute(insert, {"id": key, "number": number, "changed": self.column.value(number)})
        return rows

    def source(self, limit: int = 5000) -> SqlAlchemySource:
        """Return a new source: nothing is remembered but the checkpoint."""
        return SqlAlchemySource(
            url=self.url,
            table="items",
            cursor_column="changed",
            pk_columns=["id"],
            lookback=self.column.lookback,
            lookback_limit=limit,
            engine_provider=self.provider,
        )

    def poll(self, source: SqlAlchemySource, batch_size: int) -> bool:
        """Fetch one page, note it, and return whether there was nothing more to read."""
        found = source.fetch_changes(json.loads(json.dumps(self.checkpoint)), batch_size)
        assert len(found.records) <= batch_size
        for row in found.records:
            number, key = int(str(row["number"])), int(str(row["id"]))
            self.delivered[number, key] += 1
            self.newest = number if self.newest is None else max(self.newest, number)
        if found.next_checkpoint is not None:
            self.checkpoint = found.next_checkpoint
        return found.caught_up and not found.records

    def catch_up(self, batch_size: int, limit: int = 5000) -> None:
        source = self.source(limit)
        while not self.poll(source, batch_size):
            assert self.delivered.total() <= self.keys, "rows come again and again"

    @property
    def remembered(self) -> int:
        return len(self.checkpoint["lookback"]["delivered"])


@pytest.fixture
def integers(sqlite_url: str) -> Iterator[Table]:
    table = Table(sqlite_url, SQLITE[0])
    yield table
    table.close()


rounds = st.lists(st.tuples(st.lists(st.integers(0, 60), max_size=6), st.integers(1, 5)), min_size=1, max_size=5)


def check_against_the_model(table: Table, steps: list[tuple[list[int], int]]) -> None:
    """A row that is not further behind the newest than the window comes; no row comes twice."""
    table.clear()
    due: set[Row] = set()
    for numbers, batch_size in steps:
        rows = table.write(numbers)
        due |= {row for row in rows if table.newest is None or row[0] >= table.newest - BACK}
        table.catch_up(batch_size)
        assert due <= table.delivered.keys()
        assert set(table.delivered.values()) <= {1}


def check(url: str, column: WindowedColumn, examples: int) -> None:
    table = Table(url, column)

    @settings(max_examples=examples, deadline=None)
    @given(rounds)
    def follows_the_model(steps: list[tuple[list[int], int]]) -> None:
        check_against_the_model(table, steps)

    try:
        follows_the_model()
    finally:
        table.close()


@pytest.mark.parametrize("column", SQLITE, ids=str)
def test_a_late_row_inside_the_window_comes_exactly_once_on_sqlite(column: WindowedColumn, sqlite_url: str) -> None:
    check(sqlite_url, column, examples=20)


@pytest.mark.parametrize("column", POSTGRES, ids=str)
def test_a_late_row_inside_the_window_comes_exactly_once_on_postgres(column: WindowedColumn, postgres_url: str) -> None:
    check(postgres_url, column, examples=8)


@pytest.mark.parametrize("column", MARIADB, ids=str)
def test_a_late_row_inside_the_window_comes_exactly_once_on_mariadb(column: WindowedColumn, mariadb_url: str) -> None:
    check(mariadb_url, column, examples=8)


def test_rows_that_come_between_the_pages_of_a_pass_come_once(integers: Table) -> None:
    """Whatever was not further behind than the window when it was written comes, however the pages fall."""

    @settings(max_examples=50, deadline=None)
    @given(st.lists(st.tuples(st.lists(st.integers(0, 25), max_size=4), st.integers(1, 3)), min_size=1, max_size=8))
    def nothing_comes_twice_or_is_lost(steps: list[tuple[list[int], int]]) -> None:
        integers.clear()
        source, highest, due = integers.source(), 0, set[Row]()
        for lateness, batch_size in steps:
            rows = integers.write([max(0, highest + 5 - late) for late in lateness])
            due |= {row for row in rows if row[0] >= highest - BACK}
            highest = max([highest, *(number for number, _ in rows)])
            integers.poll(source, batch_size)
        integers.catch_up(batch_size=2)
        assert due <= integers.delivered.keys()
        assert set(integers.delivered.values()) <= {1}

    nothing_comes_twice_or_is_lost()


def test_a_late_row_comes_although_every_page_is_full_of_newer_ones(integers: Table) -> None:
    """Under a steady load a pass could go on for ever; what was behind it would be out of the window in the end."""
    integers.write([1, 2])
    source = integers.source(limit=60)
    integers.poll(source, 2)
    integers.write([0])
    for number in range(3, 100):
        integers.write([number, number])
        assert not integers.poll(source, 2)
    assert integers.delivered[0, 2] == 1
    integers.catch_up(2, limit=60)
    assert set(integers.delivered.values()) == {1}


def test_delivered_rows_do_not_come_again_over_many_polls(integers: Table) -> None:
    integers.write(list(range(8)))
    source = integers.source()
    for _ in range(50):
        integers.poll(source, 3)
    assert integers.delivered == Counter({(number, number): 1 for number in range(8)})


def test_a_restart_goes_on_from_the_checkpoint_alone(integers: Table) -> None:
    integers.write([20, 25, 30])
    integers.poll(integers.source(), 2)
    integers.write([21])
    integers.catch_up(2)
    integers.write([22])
    integers.catch_up(2)
    assert sorted(integers.delivered) == [(20, 0), (21, 3), (22, 4), (25, 1), (30, 2)]
    assert set(integers.delivered.values()) == {1}


def test_what_falls_out_of_the_window_is_forgotten(integers: Table) -> None:
    integers.write(list(range(0, 200, 2)))
    integers.catch_up(7)
    integers.write([200])
    integers.catch_up(7)
    assert integers.remembered == (BACK + 2) // 2 + 1


@settings(max_examples=50, deadline=None)
@given(steps=rounds, limit=st.integers(1, 4))
def check_the_limit(table: Table, steps: list[tuple[list[int], int]], limit: int) -> None:
    """Whatever the limit: nothing comes twice, all that is newer than the newest comes, little is remembered."""
    table.clear()
    for numbers, batch_size in steps:
        before = table.newest
        rows = table.write(numbers)
        table.catch_up(batch_size, limit)
        newer = {row for row in rows if before is None or row[0] > before}
        assert newer <= table.delivered.keys()
        assert set(table.delivered.values()) <= {1}
        assert not table.checkpoint or table.remembered <= limit


def test_what_is_remembered_stays_within_the_limit(integers: Table) -> None:
    check_the_limit(integers)


def test_many_rows_with_one_cursor_value_stay_within_the_limit(integers: Table) -> None:
    integers.write([7] * 30)
    integers.catch_up(4, limit=5)
    assert integers.remembered <= 5
    integers.write([7] * 3)
    integers.catch_up(4, limit=5)
    integers.write([8, 9])
    integers.catch_up(4, limit=5)
    assert integers.delivered.total() == 35
    assert set(integers.delivered.values()) == {1}


def test_a_shortened_window_warns_and_still_takes_what_is_newer(
    integers: Table, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="holdfast.trigger"):
        integers.write([1, 2, 3, 4, 5, 6])
        integers.catch_up(10, limit=3)
    assert "now reaches back only to 4" in caplog.text
    assert integers.remembered == 3
    integers.write([2, 5, 7])
    integers.catch_up(10, limit=3)
    assert sorted(integers.delivered - Counter({(n, n - 1): 1 for n in range(1, 7)})) == [(5, 7), (7, 8)]


REFUSED: dict[str, tuple[object, timedelta | float]] = {
    "text": ("order 7", 10),
    "bytes": (b"7", 10),
    "flag": (True, 10),
    "time of day": (time(12), 10),
    "uuid": (UUID(int=7), 10),
    "number with a duration": (7, timedelta(seconds=10)),
}


@pytest.mark.parametrize(("value", "lookback"), REFUSED.values(), ids=REFUSED)
def test_a_cursor_that_cannot_be_moved_back_is_refused(value: object, lookback: timedelta | float) -> None:
    with pytest.raises(SourceConfigurationError, match="lookback"):
        shifted_back(value, lookback)


@pytest.mark.parametrize(
    "value", [datetime.min.replace(tzinfo=UTC), date.min, timedelta.min, "0001-01-01 00:00:00", "0001-01-01"], ids=str
)
def test_there_is_nothing_before_the_beginning_of_time(value: object) -> None:
    assert shifted_back(value, 10) == value
