"""A key is of its column's type before the database is asked: get, update and delete agree, in every database."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Integer, Numeric
from sqlalchemy.dialects.postgresql import DOMAIN

from holdfast import ConfigurationError, DbReader, DbWriter
from holdfast.binding import tables
from holdfast.database.column_values import fitting
from tests.binding.databases import Database

Act = Callable[[DbReader, DbWriter, object], object]
WAYS: dict[str, Act] = {
    "get": lambda reader, writer, key: reader.get(pk={"id": key}),
    "update": lambda reader, writer, key: writer.update(data={"n": 9}, pk={"id": key}),
    "update_many": lambda reader, writer, key: writer.update_many(rows=[{"id": key, "n": 9}]),
    "delete": lambda reader, writer, key: writer.delete(pk={"id": key}),
    "delete_many": lambda reader, writer, key: writer.delete_many(pks=[{"id": key}]),
    "upsert": lambda reader, writer, key: writer.upsert(data={"id": key, "n": 9}, conflict_columns=["id"]),
}
IDENTITY = UUID("6b3f3c1e-6f0e-5c0e-9a53-3a1d6f0c7d11")
BYTES = {"postgresql": "bytea", "mysql": "varbinary(16)", "sqlite": "blob"}
MOMENT = {"postgresql": "timestamp", "mysql": "datetime(6)", "sqlite": "datetime"}

_MORE_DIGITS = [Decimal("1.251"), 1.251, "1000"]

# What a column is, the rows in it, what finds the first of them, and what fits none: databases would guess.
CASES: dict[str, tuple[Any, list[object], list[object], list[object]]] = {
    "integer": (
        "integer",
        [42, 0, 7, 8, 1],
        [42, "42", 42.0, Decimal(42)],
        ["nope", "42abc", "7; drop", " 42", "42 ", "4_2", "042", "4.2e1", "", 7.5, "7.5", True, b"7", [7], "٤٢", 2**63],
    ),
    "varchar": (
        "varchar(20)",
        ["42", "0", "nope", "1"],
        ["42", 42],
        [True, 42.0, b"42", "a\x00", "\ud800", Decimal(42)],
    ),
    "numeric": (
        "numeric(5, 2)",
        [Decimal("1.25"), Decimal("0.00"), Decimal("1.20")],
        [Decimal("1.25"), "1.25", 1.25, Decimal("1.2500")],
        ["nope", "1.25abc", *_MORE_DIGITS, "NaN", float("inf"), True],
    ),
    "date": (
        "date",
        [date(2024, 5, 1), date(2024, 5, 2)],
        [date(2024, 5, 1), "2024-05-01", datetime(2024, 5, 1)],  # noqa: DTZ001 - a day has no zone
        ["nope", "2024-05-01abc", "2024-05-01 10:00", "now", "today", datetime(2024, 5, 1, 10), 20240501],  # noqa: DTZ001
    ),
    "moment": (
        MOMENT,
        [datetime(2024, 5, 1, 10, 30, 1, 5), datetime(2024, 5, 1)],  # noqa: DTZ001 - the column has no zone
        [datetime(2024, 5, 1, 10, 30, 1, 5), "2024-05-01T10:30:01.000005"],  # noqa: DTZ001 - see above
        ["nope", "2024-05-01abc", "now", "epoch", 20240501, True],
    ),
    "bytes": (BYTES, [b"a", b"b"], [b"a", bytearray(b"a")], ["a", 1, "\\x61"]),
}


@pytest.mark.parametrize("case", CASES)
def test_14_2_what_fits_finds_its_row_and_what_does_not_is_refused(database: Database, case: str) -> None:
    kind, stored, fit, unfit = CASES[case]
    kind = kind if isinstance(kind, str) else kind[database.kind]
    database.execute(f"CREATE TABLE things (id {kind} PRIMARY KEY, n integer)")
    reader, writer = database.reader("things"), database.writer("things")
    writer.insert_many(rows=[{"id": key, "n": 0} for key in stored])
    for key in unfit:
        if case == "numeric" and database.kind == "sqlite" and key in _MORE_DIGITS:
            continue  # it keeps more digits than its column says
        told = {way: refusal(act, reader, writer, key) for way, act in WAYS.items()}
        assert len(set(told.values())) == 1, told
        assert "cannot be a key in column 'id' of 'things', which is" in told["get"]
        assert "\n" not in told["get"]
    assert database.rows("SELECT count(*), max(n) FROM things") == [(len(stored), 0)]
    for key in fit:
        assert reader.get(pk={"id": key}) == {"id": stored[0], "n": 0}
        writer.update(data={"n": 1}, pk={"id": key})
        writer.update_many(rows=[{"id": key, "n": 2}])
        assert reader.get(pk={"id": stored[0]}) == {"id": stored[0], "n": 2}
        writer.upsert(data={"id": key, "n": 3}, conflict_columns=["id"])
        assert database.value("SELECT count(*) FROM things WHERE n = 3") == 1
        writer.delete(pk={"id": key})
        assert database.rows("SELECT count(*), max(n) FROM things") == [(len(stored) - 1, 0)]
        writer.insert(data={"id": stored[0], "n": 0})


def refusal(act: Act, reader: DbReader, writer: DbWriter, key: object) -> str:
    with pytest.raises(ConfigurationError) as caught:
        act(reader, writer, key)
    return str(caught.value)


@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_14_2_uuids_are_told_by_their_text(kind: str, request: pytest.FixtureRequest) -> None:
    database: Database = request.getfixturevalue(kind)
    database.execute("CREATE TABLE things (id uuid PRIMARY KEY, n integer)")
    reader, writer = database.reader("things"), database.writer("things")
    writer.insert(data={"id": IDENTITY, "n": 0})
    for key in (IDENTITY, str(IDENTITY), IDENTITY.hex, str(IDENTITY).upper()):
        assert reader.get(pk={"id": key}) == {"id": IDENTITY, "n": 0}
    for unfit in ("nope", f"{{{IDENTITY}}}", f"{IDENTITY} ", 7, b"x" * 16):
        assert "it must be a UUID" in refusal(WAYS["delete"], reader, writer, unfit)
    writer.delete(pk={"id": IDENTITY.hex})
    assert database.rows("SELECT * FROM things") == []


def test_14_2_mariadb_booleans_and_choices(mariadb: Database) -> None:
    mariadb.execute(
        "CREATE TABLE things (flag boolean, choice enum('new', 'paid'), n integer, PRIMARY KEY (flag, choice))"
    )
    reader, writer = mariadb.reader("things"), mariadb.writer("things")
    writer.insert(data={"flag": True, "choice": "paid", "n": 0})
    assert reader.get(pk={"flag": True, "choice": "paid"}) is not None
    for key in ({"flag": True, "choice": "lost"}, {"flag": True, "choice": 2}, {"flag": "yes", "choice": "paid"}):
        with pytest.raises(ConfigurationError, match="cannot be a key in column"):
            writer.delete(pk=key)  # type: ignore[arg-type]  # what a caller without types may do
    assert mariadb.rows("SELECT count(*) FROM things") == [(1,)]


def test_14_2_types_behind_others_decide() -> None:
    with pytest.raises(ValueError, match="it must be a whole number"):
        fitting(7.5, DOMAIN("positive", Integer()), "postgresql")
    assert fitting("nope", Numeric(), "sqlite") == "nope"  # a type that SQLite does not know: it compares as it is


@pytest.mark.parametrize(("fresh_seconds", "is_looked_at"), [(0.0, True), (3600.0, False)])
def test_14_2_a_column_that_has_another_type_by_now_is_looked_at_anew_now_and_then(
    database: Database, monkeypatch: pytest.MonkeyPatch, fresh_seconds: float, is_looked_at: bool
) -> None:
    """Not for each wrong key: whoever makes them up would have the table looked up all the time."""
    monkeypatch.setattr(tables, "_FRESH_SECONDS", fresh_seconds)
    database.execute("CREATE TABLE things (id integer PRIMARY KEY, n integer)")
    reader = database.reader("things")
    assert reader.get(pk={"id": 7}) is None  # the table is known from here on
    database.execute("DROP TABLE things")
    database.execute("CREATE TABLE things (id varchar(20) PRIMARY KEY, n integer)")
    database.execute("INSERT INTO things VALUES ('nope', 1)")
    if is_looked_at:
        assert reader.get(pk={"id": "nope"}) == {"id": "nope", "n": 1}
    else:
        with pytest.raises(ConfigurationError, match="cannot be a key"):
            reader.get(pk={"id": "nope"})


NOON = datetime(2024, 5, 1, 12, 30, 1)  # noqa: DTZ001 - the columns have no zone
# What a column declares, a value that it can hold, and values that are finer: the database finds nothing by them.
FINER: dict[str, list[tuple[str, object, list[object], str]]] = {
    "postgres": [
        ("real", 0.1, [0.1 + 2**-40, 16777217, Decimal("0.100000001"), 1e300], "more digits than single precision"),
        ("timestamp(3)", NOON.replace(microsecond=5000), [NOON.replace(microsecond=5)], "at most 3 digits of a second"),
        ("timestamp(0)", NOON, [NOON.replace(microsecond=1), "2024-05-01T12:30:01.5"], "it must be whole seconds"),
        ("timestamptz(3)", NOON.replace(tzinfo=UTC), [NOON.replace(microsecond=5, tzinfo=UTC)], "at most 3 digits"),
        ("time(0)", NOON.time(), [time(1, 2, 3, 4)], "it must be whole seconds"),
    ],
    "mariadb": [
        ("float", 0.1, [0.1 + 2**-40, 16777217, Decimal("0.100000001")], "more digits than single precision"),
        ("datetime", NOON, [NOON.replace(microsecond=1), "2024-05-01T12:30:01.5"], "it must be whole seconds"),
        ("datetime(3)", NOON.replace(microsecond=5000), [NOON.replace(microsecond=5)], "at most 3 digits of a second"),
        ("time", NOON.time(), [time(1, 2, 3, 4), timedelta(microseconds=1)], "it must be whole seconds"),
        ("binary(4)", b"abcd", [b"a", b"", b"abcde"], "it must be 4 bytes"),
    ],
}


@pytest.mark.parametrize(("kind", "case"), [(kind, at) for kind, cases in FINER.items() for at in range(len(cases))])
def test_14_2_a_key_finer_than_its_column_is_refused(kind: str, case: int, request: pytest.FixtureRequest) -> None:
    database: Database = request.getfixturevalue(kind)
    declared, whole, finer, said = FINER[kind][case]
    database.execute(f"CREATE TABLE things (id {declared} PRIMARY KEY, n integer)")
    reader, writer = database.reader("things"), database.writer("things")
    writer.insert(data={"id": whole, "n": 0})
    for key in finer:
        told = {way: refusal(act, reader, writer, key) for way, act in WAYS.items()}
        assert len(set(told.values())) == 1, told
        assert said in told["get"]
    for name, act in WAYS.items():
        act(reader, writer, whole)
        is_there = database.value("SELECT count(*) FROM things") == 1
        assert is_there is not name.startswith("delete"), name
        if name.startswith("update") or name == "upsert":
            assert database.value("SELECT n FROM things") == 9
            writer.update(data={"n": 0}, pk={"id": whole})
        elif not is_there:
            writer.insert(data={"id": whole, "n": 0})
    found = reader.get(pk={"id": whole})
    assert found is not None
    assert reader.get(pk={"id": found["id"]}) == found
