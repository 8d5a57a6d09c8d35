"""Which horizon ``auto`` takes for a column, and what it refuses because a late commit could be skipped."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, create_engine, text

from holdfast import SqlAlchemySource
from holdfast.core.errors import SourceConfigurationError
from holdfast.database.reflection import reflect_table
from holdfast.trigger.sources.horizons.base import NoSoundHorizonError
from holdfast.trigger.sources.horizons.choose import choose
from holdfast.trigger.sources.inspection import CursorFacts, cursor_facts

POSTGRES_CLOCKS = {
    "timestamptz DEFAULT now()": (6, None),
    "timestamptz(3) DEFAULT now()": (3, None),
    "timestamptz DEFAULT current_timestamp(2)": (2, None),
    "timestamptz DEFAULT clock_timestamp()": (6, None),
    "timestamptz DEFAULT statement_timestamp()": (6, None),
    "timestamptz DEFAULT transaction_timestamp()": (6, None),
    "timestamp DEFAULT localtimestamp": (6, None),
    "timestamp(4) DEFAULT localtimestamp(5)": (4, None),
    "timestamp DEFAULT current_timestamp::timestamp(0)": (0, None),
    "timestamp DEFAULT (now() AT TIME ZONE 'utc')": (6, "utc"),
    "timestamp DEFAULT timezone('Europe/Berlin', now())": (6, "Europe/Berlin"),
    "date DEFAULT current_date": (6, None),
    "date DEFAULT now()::date": (6, None),
}
POSTGRES_OTHERS = (
    "timestamptz",
    "timestamptz DEFAULT '2026-01-01'",
    "timestamptz DEFAULT now() - interval '1 hour'",
    "timestamptz DEFAULT date_trunc('hour', now())",
    "timestamptz DEFAULT (now() AT TIME ZONE 'utc')",
    "timestamp DEFAULT now()::date",
    "timestamp DEFAULT current_date",
    "timestamp DEFAULT (now() AT TIME ZONE 'utc' AT TIME ZONE 'Europe/Berlin')",
    "time DEFAULT localtime",
    "text DEFAULT now()::text",
    "bigint DEFAULT extract(epoch FROM now())",
    "uuid DEFAULT gen_random_uuid()",
)
MARIADB_CLOCKS = {
    "TIMESTAMP(6) DEFAULT CURRENT_TIMESTAMP(6)": (6, None),
    "TIMESTAMP(6) DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6)": (6, None),
    "DATETIME DEFAULT NOW()": (0, None),
    "DATETIME(3) DEFAULT LOCALTIMESTAMP(3)": (3, None),
    "DATETIME(6) DEFAULT (SYSDATE(4))": (4, None),
    "DATETIME(6) DEFAULT (UTC_TIMESTAMP(6))": (6, "utc"),
    "DATE DEFAULT (CURDATE())": (0, None),
    "DATE DEFAULT (UTC_DATE())": (0, "utc"),
}
MARIADB_OTHERS = (
    "DATETIME(6)",
    "DATETIME DEFAULT '2026-01-01'",
    "DATETIME(6) DEFAULT (NOW(6) - INTERVAL 1 DAY)",
    "DATETIME(6) DEFAULT (CURDATE())",
    "TIMESTAMP(6) DEFAULT (UTC_TIMESTAMP(6))",
    "TIME DEFAULT (CURTIME())",
    "VARCHAR(40) DEFAULT (NOW())",
    "BIGINT DEFAULT (UNIX_TIMESTAMP())",
)
SQLITE_CLOCKS = (
    "TEXT DEFAULT CURRENT_TIMESTAMP",
    "DATE DEFAULT CURRENT_DATE",
    "TIMESTAMP DEFAULT (datetime('now'))",
    "TEXT DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))",
    "INTEGER DEFAULT (strftime('%s', 'now'))",
    "INTEGER DEFAULT (unixepoch())",
    "REAL DEFAULT (julianday('now'))",
)
SQLITE_OTHERS = ("TEXT", "TIMESTAMP", "TIMESTAMP DEFAULT '2026-01-01'", "INTEGER", "TEXT DEFAULT 'unknown'")


def facts_of(url: str, column: str) -> CursorFacts:
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE TABLE items (id BIGINT PRIMARY KEY, changed {column})".replace("%", "%%"))
    facts = cursor_facts(engine, reflect_table(engine, "items", None, SourceConfigurationError), "changed")
    engine.dispose()
    return facts


def source_of(url: str, horizon: str | None = "auto", lookback: float | None = None) -> SqlAlchemySource:
    return SqlAlchemySource(
        url=url, table="items", cursor_column="changed", pk_columns=["id"], horizon=horizon, lookback=lookback
    )


@pytest.mark.parametrize(("column", "expected"), POSTGRES_CLOCKS.items(), ids=POSTGRES_CLOCKS)
def test_postgres_defaults_that_are_the_server_clock(
    column: str, expected: tuple[int, str | None], postgres_url: str
) -> None:
    facts = facts_of(postgres_url, column)
    assert facts.clock is not None
    assert (facts.digits, facts.clock.zone) == expected
    source = source_of(postgres_url)
    assert source.capability().horizon == "server_time"
    source.fetch_changes({}, 1)


@pytest.mark.parametrize("column", POSTGRES_OTHERS)
def test_postgres_defaults_whose_values_may_lie_behind_the_clock_are_refused(column: str, postgres_url: str) -> None:
    assert facts_of(postgres_url, column).clock is None
    with pytest.raises(NoSoundHorizonError):
        source_of(postgres_url).open()


@pytest.mark.parametrize(("column", "expected"), MARIADB_CLOCKS.items(), ids=MARIADB_CLOCKS)
def test_mariadb_defaults_that_are_the_server_clock(
    column: str, expected: tuple[int, str | None], mariadb_url: str
) -> None:
    facts = facts_of(mariadb_url, column)
    assert facts.clock is not None
    assert (facts.digits, facts.clock.zone) == expected
    source = source_of(mariadb_url)
    assert source.capability().horizon == "server_time"
    source.fetch_changes({}, 1)


@pytest.mark.parametrize("column", MARIADB_OTHERS)
def test_mariadb_defaults_whose_values_may_lie_behind_the_clock_are_refused(column: str, mariadb_url: str) -> None:
    assert facts_of(mariadb_url, column).clock is None
    with pytest.raises(NoSoundHorizonError):
        source_of(mariadb_url).open()


@pytest.mark.parametrize("column", SQLITE_CLOCKS)
def test_sqlite_defaults_that_are_the_clock(column: str, sqlite_url: str) -> None:
    assert facts_of(sqlite_url, column).clock is not None
    source = source_of(sqlite_url)
    assert source.capability().horizon == "server_time"
    source.fetch_changes({}, 1)


@pytest.mark.parametrize("column", SQLITE_OTHERS)
def test_sqlite_columns_the_application_fills_are_refused(column: str, sqlite_url: str) -> None:
    assert facts_of(sqlite_url, column).clock is None
    with pytest.raises(NoSoundHorizonError):
        source_of(sqlite_url).open()


CLIENT_SIDE = {
    "postgres_url": "timestamptz NOT NULL",
    "mariadb_url": "DATETIME(6) NOT NULL",
    "sqlite_url": "TIMESTAMP NOT NULL",
}
on_every_database = pytest.mark.parametrize("database", CLIENT_SIDE)


@on_every_database
def test_a_time_the_application_writes_is_refused_with_three_ways_out(
    database: str, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue(database)
    facts_of(url, CLIENT_SIDE[database])
    with pytest.raises(SourceConfigurationError) as refused:
        source_of(url).open()
    for choice in ("horizon='server_time'", "lookback=<seconds>", "horizon='none'"):
        assert choice in str(refused.value)


@on_every_database
def test_each_way_out_is_taken(database: str, request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue(database)
    facts_of(url, CLIENT_SIDE[database])
    assert source_of(url, "server_time").capability().horizon == "server_time"
    assert source_of(url, "none").capability().safe_from_late_commits is False
    assert source_of(url, lookback=60).capability().horizon == "none, lookback 60"


@on_every_database
def test_without_a_choice_such_a_time_is_read_with_a_warning(
    database: str, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    url = request.getfixturevalue(database)
    facts_of(url, CLIENT_SIDE[database])
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO items (id, changed) VALUES (1, '2026-01-01 00:00:00')"))
    engine.dispose()
    with caplog.at_level(logging.WARNING):
        found = source_of(url, None).fetch_changes({}, 10)
    assert [row["id"] for row in found.records] == [1]
    assert "would be skipped for ever" in caplog.text


def facts(**known: Any) -> CursorFacts:
    given: dict[str, Any] = {
        "name": "id",
        "type": Integer(),
        "type_name": "integer",
        "nullable": False,
        "default": None,
        "generated_id": True,
    }
    return CursorFacts(**{**given, **known})


ITEMS = Table("items", MetaData(), Column("id", Integer))


def test_a_database_without_a_known_horizon_has_to_be_told_what_to_do() -> None:
    with pytest.raises(NoSoundHorizonError, match="No horizon is known for mssql"):
        choose("auto", "mssql", ITEMS, facts(), timedelta(0))
    assert choose("none", "mssql", ITEMS, facts(), timedelta(0)).name == "none"


@pytest.mark.parametrize("horizon", ["xid8", "server_time"])
def test_a_horizon_that_does_not_fit_the_column_is_refused(horizon: str) -> None:
    with pytest.raises(SourceConfigurationError, match=f"horizon='{horizon}' does not fit column 'id'"):
        choose(horizon, "postgresql", ITEMS, facts(), timedelta(0))


def test_an_unknown_horizon_is_refused() -> None:
    with pytest.raises(SourceConfigurationError, match="is not known: use one of auto"):
        choose("latest", "postgresql", ITEMS, facts(), timedelta(0))


def test_a_query_has_no_column_to_inspect() -> None:
    with pytest.raises(NoSoundHorizonError, match="Poll the table instead"):
        choose("auto", "postgresql", None, None, timedelta(0))
