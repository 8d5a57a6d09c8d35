"""What is written comes back: every kind of value, through ``insert`` and ``get``, on each database."""

from __future__ import annotations

import uuid
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from ipaddress import ip_address
from typing import Any

import pytest

from holdfast import WriteError
from tests.binding.databases import Database

KATHMANDU = timezone(timedelta(hours=5, minutes=45))
INSTANT = datetime(2026, 2, 28, 23, 59, 59, 123456, tzinfo=KATHMANDU)
NAIVE = INSTANT.astimezone(UTC).replace(tzinfo=None)
TEXT = "Grüße, 世界 🦀 'quoted' \"double\" %s %(x)s :name ? \\ ;--"
IDENTITY = uuid.UUID("6f9619ff-8b86-4011-b42d-00c04fc964ff")

Case = tuple[str, Any, Any]
"""A column type, what is written, and what ``get`` returns."""

POSTGRES: dict[str, Case] = {
    "zoned": ("timestamptz", INSTANT, INSTANT),
    "naive": ("timestamp", NAIVE, NAIVE),
    "day": ("date", date(1, 1, 1), date(1, 1, 1)),
    "clock": ("time", time(23, 59, 59, 999999), time(23, 59, 59, 999999)),
    "length": ("interval", timedelta(days=-3, seconds=5), timedelta(days=-3, seconds=5)),
    "exact": (
        "numeric(38, 10)",
        Decimal("-1234567890123456789.0123456789"),
        Decimal("-1234567890123456789.0123456789"),
    ),
    "unbounded": ("numeric", Decimal("1E-30"), Decimal("1E-30")),
    "rough": ("double precision", 1e-17, 1e-17),
    "big": ("bigint", -(2**63), -(2**63)),
    "flag": ("boolean", False, False),
    "identity": ("uuid", IDENTITY, IDENTITY),
    "identity_as_text": ("uuid", str(IDENTITY), IDENTITY),
    "document": ("jsonb", {"a": [1, None, "ü"], "b": {}}, {"a": [1, None, "ü"], "b": {}}),
    "listing": ("json", [1, "2", None], [1, "2", None]),
    "contents": ("bytea", bytes(range(256)), bytes(range(256))),
    "numbers": ("integer[]", [1, None, -3], [1, None, -3]),
    "words": ("text[]", [TEXT, ""], [TEXT, ""]),
    "grid": ("integer[][]", [[1, 2], [3, 4]], [[1, 2], [3, 4]]),
    "words_empty": ("text[]", [], []),
    "words_unicode": ("text", TEXT, TEXT),
    "address": ("inet", ip_address("10.0.0.1"), ip_address("10.0.0.1")),
    "log_place": ("pg_lsn", "16/B374D848", "16/B374D848"),
}
MARIADB: dict[str, Case] = {
    "zoned": ("timestamp(6)", INSTANT.astimezone(UTC), NAIVE),
    "naive": ("datetime(6)", NAIVE, NAIVE),
    "day": ("date", date(1000, 1, 1), date(1000, 1, 1)),
    "clock": ("time(6)", time(23, 59, 59, 999999), time(23, 59, 59, 999999)),
    "exact": (
        "decimal(38, 10)",
        Decimal("-1234567890123456789.0123456789"),
        Decimal("-1234567890123456789.0123456789"),
    ),
    "rough": ("double", 1e-17, 1e-17),
    "big": ("bigint unsigned", 2**64 - 1, 2**64 - 1),
    "flag": ("boolean", True, 1),
    "identity": ("uuid", IDENTITY, IDENTITY),
    "document": ("json", {"a": [1, None, "ü"]}, {"a": [1, None, "ü"]}),
    "contents": ("blob", bytes(range(256)), bytes(range(256))),
    "words_unicode": ("text", TEXT, TEXT),
    "choice": ("enum('new', 'paid')", "paid", "paid"),
}
SQLITE: dict[str, Case] = {
    "zoned": ("DATETIME", INSTANT.astimezone(UTC), NAIVE),
    "naive": ("TIMESTAMP", NAIVE, NAIVE),
    "day": ("DATE", date(1, 1, 1), date(1, 1, 1)),
    "clock": ("TIME", time(23, 59, 59, 999999), time(23, 59, 59, 999999)),
    "rough": ("REAL", 1e-17, 1e-17),
    "big": ("INTEGER", -(2**63), -(2**63)),
    "flag": ("BOOLEAN", False, False),
    "identity": ("CHAR(32)", IDENTITY.hex, IDENTITY.hex),
    "document": ("JSON", {"a": [1, None, "ü"]}, {"a": [1, None, "ü"]}),
    "contents": ("BLOB", bytes(range(256)), bytes(range(256))),
    "words_unicode": ("TEXT", TEXT, TEXT),
}
CASES = {"postgresql": POSTGRES, "mysql": MARIADB, "sqlite": SQLITE}


def test_every_type_comes_back_as_it_was_written(database: Database) -> None:
    cases = CASES[database.kind]
    columns = ", ".join(f"{name} {case[0]} NULL" for name, case in cases.items())
    database.raw(f"CREATE TABLE things (id integer PRIMARY KEY, {columns})")
    written = {"id": 1} | {name: case[1] for name, case in cases.items()}
    writer, reader = database.writer("things"), database.reader("things")

    writer.insert(data=written)
    assert reader.get(pk={"id": 1}) == {"id": 1} | {name: case[2] for name, case in cases.items()}

    writer.upsert(data=written | {"id": 2}, conflict_columns=["id"])
    writer.upsert(data=written | {"id": 2}, conflict_columns=["id"])
    writer.insert(data={"id": 3})
    writer.update(data=written | {"id": 3}, pk={"id": 3})
    everything = reader.query("SELECT * FROM things ORDER BY id")
    assert len(everything) == 3
    for row in everything[1:]:
        assert row | {"id": 1} == everything[0], "upsert and update store what insert stores"


def test_none_is_null_whatever_the_type(database: Database) -> None:
    names = list(CASES[database.kind])
    columns = ", ".join(f"{name} {case[0]} NULL" for name, case in CASES[database.kind].items())
    database.raw(f"CREATE TABLE things (id integer PRIMARY KEY, {columns})")
    writer = database.writer("things")
    empty: dict[str, object] = dict.fromkeys(names)

    writer.insert(data={"id": 1} | empty)
    writer.upsert(data={"id": 1} | empty, conflict_columns=["id"])
    writer.update(data=empty, pk={"id": 1})
    writer.update_many(rows=[{"id": 1} | empty])

    for name in names:
        assert database.value(f"SELECT count(*) FROM things WHERE {name} IS NULL") == 1, name
    assert database.reader("things").get(pk={"id": 1}) == {"id": 1} | empty


def test_an_instant_keeps_its_zone_where_the_database_has_zones(postgres: Database) -> None:
    postgres.execute("CREATE TABLE visits (id integer PRIMARY KEY, at timestamptz NOT NULL)")
    postgres.writer("visits").insert(data={"id": 1, "at": INSTANT})
    for session_zone in ("UTC", "America/New_York"):
        said = postgres.rows(f"SELECT set_config('TimeZone', '{session_zone}', false), at FROM visits")
        assert said[0][1] == INSTANT
    found = postgres.reader().scalar("SELECT at FROM visits WHERE at = :at", params={"at": INSTANT.astimezone(UTC)})
    assert found == INSTANT
    assert isinstance(found, datetime)
    assert found.tzinfo is not None


def test_floating_point_numbers_on_mariadb_are_floats_to_the_last_digit(mariadb: Database) -> None:
    """SQLAlchemy by itself would hand out decimals of ten places."""
    mariadb.execute("CREATE TABLE sizes (id integer PRIMARY KEY, d double, r real, f float, s double(20, 12))")
    written: dict[str, object] = {"d": 1 / 3, "r": 2.5e-300, "f": 0.25, "s": 1.123456789012}
    mariadb.writer("sizes").insert(data={"id": 1} | written)
    for read in (mariadb.reader("sizes").get(pk={"id": 1}), mariadb.reader().one("SELECT * FROM sizes")):
        assert read == {"id": 1} | written
        assert {type(read[name]) for name in written} == {float}


@pytest.mark.parametrize(
    "value",
    [2**70, "\ud800", object(), {1, 2}, float("nan")],
    ids=["huge number", "half a character", "object", "set", "not a number"],
)
def test_a_value_the_database_cannot_hold_is_one_write_error(database: Database, value: object) -> None:
    database.execute("CREATE TABLE counts (id integer PRIMARY KEY, n integer NOT NULL)")
    writer = database.writer("counts")
    with pytest.raises(WriteError, match="insert into 'counts' failed") as caught:
        writer.insert(data={"id": 1, "n": value})
    assert "\n" not in str(caught.value)
    assert database.rows("SELECT * FROM counts") == []


def test_large_values_pass(database: Database) -> None:
    binary = "bytea" if database.kind == "postgresql" else "longblob"
    database.execute(f"CREATE TABLE files (id integer PRIMARY KEY, body {binary})")
    body = bytes(range(256)) * 8192
    database.writer("files").insert(data={"id": 1, "body": body})
    assert database.reader("files").get(pk={"id": 1}) == {"id": 1, "body": body}


def test_an_instant_is_kept_in_utc_where_there_are_no_zones(sqlite: Database) -> None:
    sqlite.execute("CREATE TABLE visits (id INTEGER PRIMARY KEY, at TIMESTAMP, until DATETIME)")
    writer = sqlite.writer("visits")
    writer.insert(data={"id": 1, "at": INSTANT, "until": INSTANT})
    writer.upsert(data={"id": 2, "at": INSTANT.astimezone(UTC), "until": NAIVE}, conflict_columns=["id"])
    writer.insert(data={"id": 3})
    writer.update_many(rows=[{"id": 3, "at": INSTANT, "until": INSTANT}])
    stored = sqlite.rows("SELECT DISTINCT CAST(at AS TEXT), CAST(until AS TEXT) FROM visits")
    assert stored == [(str(NAIVE), str(NAIVE))]
    assert sqlite.reader("visits").get(pk={"id": 1}) == {"id": 1, "at": NAIVE, "until": NAIVE}


@pytest.mark.parametrize("value", [Decimal("NaN"), float("nan"), time(1, tzinfo=UTC)])
def test_what_sqlite_would_store_as_something_else_is_refused(sqlite: Database, value: object) -> None:
    sqlite.execute("CREATE TABLE odd (id INTEGER PRIMARY KEY, n NUMERIC(10, 2), f FLOAT, t TIME)")
    for column in ("t",) if isinstance(value, time) else ("n", "f"):
        with pytest.raises(WriteError, match=r"failed: column '[nft]': (NaN would be stored as NULL|a time of day)"):
            sqlite.writer("odd").insert(data={"id": 1, column: value})
    assert sqlite.rows("SELECT * FROM odd") == []
