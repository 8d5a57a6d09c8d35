"""Line 7: each column type, by writer, reader, trigger row, cursor and key: exact or refused, none silently changed.

One table per database has a column of each type and two rows, told apart in every column. What a column's declaration
says is the schema's word: decimal places, digits of a second, single precision, the length of a CHAR.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from functools import partial
from ipaddress import ip_address, ip_interface, ip_network
from typing import Any

import pytest
from sqlalchemy.dialects.postgresql import Range
from sqlalchemy.exc import DBAPIError

from holdfast import ConfigurationError, DbError, SqlAlchemySource, WriteError
from holdfast.core.types import JsonObject
from tests.binding.databases import Database

KARACHI = timezone(timedelta(hours=5))
NOON_IN_KARACHI = datetime(2026, 2, 28, 12, 30, 15, 123456, tzinfo=KARACHI)
IN_UTC = NOON_IN_KARACHI.astimezone(UTC).replace(tzinfo=None)
NOON = NOON_IN_KARACHI.replace(tzinfo=None)
LATER = NOON.replace(year=2027, microsecond=1)
LOW, HIGH = uuid.UUID(int=1), uuid.UUID("ff9619ff-8b86-4011-b42d-00c04fc964ff")
TEXTS = ("Grüße, 世界 🦀 'a' \"b\" %s %(x)s :name ? \\", "zz")


@dataclass(frozen=True, slots=True)
class Kind:
    """A column type with two values, the lower one first, and what they are when read, where that is not the same.

    ``is_place`` tells whether a trigger's cursor and key can be of this type, else they are refused; ``is_key`` whether
    a table can have a primary key of it whose values are found again.
    """

    declared: str
    low: Any
    high: Any
    read_low: Any = None
    read_high: Any = None
    is_place: bool = True
    is_key: bool = True

    @property
    def written(self) -> tuple[Any, Any]:
        return self.low, self.high

    @property
    def read(self) -> tuple[Any, Any]:
        return (
            self.low if self.read_low is None else self.read_low,
            self.high if self.read_high is None else self.read_high,
        )


class Color(Enum):
    RED = "red"


POSTGRES = [
    Kind("smallint", -(2**15), 2**15 - 1),
    Kind("integer", -(2**31), 2**31 - 1),
    Kind("bigint", 2**53 + 1, 2**63 - 1),
    Kind("numeric", Decimal("1E-30"), Decimal("99999999999999.99")),
    Kind("numeric(38, 10)", Decimal("-1234567890123456789.0123456789"), 0.5, None, Decimal("0.5000000000")),
    Kind("numeric(30, 20)", 0.1 + 0.2, 0.5, Decimal("0.30000000000000004000"), Decimal("0.50000000000000000000")),
    Kind("real", 0.1, 1234567.0, is_key=False),
    Kind("double precision", 1e-17, float(2**53)),
    Kind("boolean", False, True),
    Kind("text", *TEXTS),
    Kind("varchar(60)", *TEXTS),
    Kind("char(3)", "a", "b", "a  ", "b  "),
    Kind("bytea", bytes(range(256)), b"\xff"),
    Kind("date", date(1, 1, 1), date(9999, 12, 31)),
    Kind("time", time(0, 0, 0, 1), time(23, 59, 59, 999999)),
    Kind("timetz", time(1, 2, tzinfo=KARACHI), time(1, 2, tzinfo=UTC)),
    Kind("timestamp", NOON_IN_KARACHI, LATER, IN_UTC),
    Kind("timestamptz", NOON_IN_KARACHI, LATER.replace(tzinfo=UTC)),
    Kind("interval", timedelta(days=-3, microseconds=5), timedelta(days=400)),
    Kind("interval", "1 mon", "1 year 2 mons 3 days 04:05:06.789", is_key=False),
    Kind("uuid", LOW, HIGH),
    Kind("mood", "sad", "happy"),
    Kind("xid8", "7", "18446744073709551615"),
    Kind("pg_lsn", "0/1", "16/B374D848"),
    Kind("inet", ip_address("10.0.0.1"), ip_address("10.0.0.2"), is_place=False),
    Kind("inet", ip_interface("10.0.0.1/8"), ip_interface("10.0.0.2/8"), is_place=False),
    Kind("cidr", ip_network("10.0.0.0/8"), ip_network("10.1.0.0/16"), is_place=False),
    Kind("macaddr", "08:00:2b:01:02:03", "08:00:2b:01:02:04"),
    Kind("bit(3)", "001", "101"),
    Kind("bit varying", "1", "10110"),
    Kind("int4range", Range(1, 5), Range(2, None), is_place=False),
    Kind("tstzrange", Range(NOON_IN_KARACHI, LATER.replace(tzinfo=UTC)), Range(empty=True), is_place=False),
    Kind("jsonb", {"a": [1, None, "ü", 1.5]}, {"b": 2**70}, is_place=False),
    Kind("json", [1, {"a": "b"}], "text", is_place=False, is_key=False),
    Kind("positive", 1, 2**31 - 1),
    Kind("day", NOON_IN_KARACHI, LATER, IN_UTC),
    Kind("mood[]", ["sad", None], ["ok", "happy"], is_place=False, is_key=False),
    Kind("positive[]", [1], [2, 3], is_place=False, is_key=False),
    Kind("word[]", ["a,b", 'q"\\{}', "NULL", None], [["x"], [""]], is_place=False, is_key=False),
    Kind("integer[]", [1, None, -3], [2], is_place=False),
    Kind(
        "numeric[]",
        [Decimal("0.1"), 0.1 + 0.2],
        [Decimal(1)],
        [Decimal("0.1"), Decimal("0.30000000000000004")],
        None,
        is_place=False,
    ),
]
MARIADB = [
    Kind("int", -(2**31), 2**31 - 1),
    Kind("bigint unsigned", 2**53 + 1, 2**64 - 1),
    Kind("decimal(30, 2)", Decimal("-1.50"), Decimal("99999999999999.99")),
    Kind("decimal(38, 30)", 0.1 + 0.2, Decimal("0.5"), Decimal("0.30000000000000004"), None),
    Kind("float", 0.1, 1234567.0, is_key=False),
    Kind("double", 1e-17, float(2**53)),
    Kind("double(12, 2)", 0.5, 1234567.25, is_key=False),
    Kind("boolean", False, True, 0, 1),
    Kind("varchar(60)", *TEXTS),
    Kind("char(3)", "a", "b"),
    Kind("text", *TEXTS, is_key=False),
    Kind("binary(4)", b"abcd", b"abce"),
    Kind("inet4", "10.0.0.1", "10.0.0.2"),
    Kind("varbinary(256)", bytes(range(256)), b"\xff"),
    Kind("blob", bytes(range(256)), b"\xff", is_key=False),
    Kind("date", date(1000, 1, 1), date(9999, 12, 31)),
    Kind("time(6)", time(6, 0, 0, 1), timedelta(hours=30)),
    Kind("time(6)", timedelta(hours=-30, minutes=-5, microseconds=-5), timedelta(hours=838, minutes=59)),
    Kind("datetime(6)", NOON_IN_KARACHI, LATER, IN_UTC),
    Kind("timestamp(6)", NOON_IN_KARACHI, LATER, IN_UTC),
    Kind("year", 1999, 2026),
    Kind("uuid", LOW, HIGH),
    Kind("enum('new', 'paid', 'late')", "new", "late"),
    Kind("set('a', 'b')", {"a"}, {"a", "b"}, is_key=False),
    Kind("bit(8)", 5, 255, is_key=False),
    Kind("json", {"a": [1, None, "ü", 1.5]}, [1, {"b": 2**70}], is_place=False, is_key=False),
]
SQLITE = [
    Kind("INTEGER", -(2**63), 2**63 - 1),
    Kind("NUMERIC", Decimal("9007199254740993"), 2**63 - 1, None, Decimal(2**63 - 1)),
    Kind("NUMERIC(12, 2)", Decimal("1.239"), Decimal("1234567890.12")),
    Kind("DECIMAL(10, 2)", 5, 1e300, Decimal("5.00"), Decimal("1E+300")),
    Kind("REAL", 1e-17, float(2**53)),
    Kind("BOOLEAN", False, True),
    Kind("TEXT", *TEXTS),
    Kind("VARCHAR(60)", "007", "1e5"),
    Kind("TEXT", Decimal("1.50"), LOW, "1.50", str(LOW), is_key=False),
    Kind("CHAR(36)", LOW, HIGH, str(LOW), str(HIGH)),
    Kind("TEXT", ip_address("10.0.0.1"), date(2026, 2, 28), "10.0.0.1", "2026-02-28", is_key=False),
    Kind("INTEGER", Decimal("5.0"), "42", 5, 42),
    Kind("INTEGER", Decimal("0.5"), "many", 0.5, is_key=False),
    Kind("ANY", 7, "text"),
    Kind("BLOB", bytes(range(256)), b"\xff"),
    Kind("DATE", date(1, 1, 1), date(9999, 12, 31)),
    Kind("TIME", time(0, 0, 0, 1), time(23, 59, 59, 999999)),
    Kind("DATETIME", NOON_IN_KARACHI, LATER, IN_UTC),
    Kind("TIMESTAMP", NOON, LATER),
    Kind("TIMESTAMPTZ", NOON_IN_KARACHI, LATER.replace(tzinfo=UTC)),
    Kind("STRING", "abc", "def"),
    Kind("ENUM", "new", "paid"),
    Kind("EMAIL", "a@example.com", "b@example.com"),
    Kind("UUID", LOW, HIGH),
    Kind("LONG", 2**53 + 1, 2**62),
    Kind("INTERVAL", "1 day", "2 days"),
    Kind("JSON", [1, {"a": "ü"}], {"b": 2**70}),
    Kind("JSON", 2**53 + 1, "text"),
    Kind("", 1, "text"),
]
KINDS = {"postgresql": POSTGRES, "mysql": MARIADB, "sqlite": SQLITE}

MOST_KEY_COLUMNS = 8
Refused = tuple[str, Any, str]
"""A declared type, a value that would be stored as another one, and what its error says."""

ZONED = "2026-02-28T12:30:15+05:00"
NINE_DIGITS = "2026-02-28 12:30:15.123456789"

ON_SERVERS: list[Refused] = [
    ("integer", 1.5, "decimals would be rounded"),
    ("integer", Decimal("0.5"), "decimals would be rounded"),
    ("integer", "1.50", "text is no whole number"),
    ("integer", b"a", "a number is wanted, not bytes"),
    ("integer", [1.5], "one value is wanted, not a list"),
    ("date", NOON, "no place for a time of day"),
    ("date", "2026-02-28 12:30", "no place for a time of day"),
    ("date", ZONED, "no place for a time of day"),
    ("date", 0, "a date is wanted, not int"),
    ("time", time(1, tzinfo=KARACHI), "leave the zone out"),
    ("time", "12:30:15+05:00", "leave the zone out"),
    ("time", "2026-02-28 12:30:15", "leave it out of the text"),
    ("time", NOON, "is no datetime"),
    ("time", 1.5, "a time of day is wanted, not float"),
    ("double precision", 2**53 + 1, "more digits than a double keeps"),
    ("double precision", Decimal("0.10000000000000000001"), "more digits than a double keeps"),
    ("numeric(9, 2)", b"1", "a number is wanted, not bytes"),
    ("varchar(60)", True, "bool is no text"),
    ("varchar(60)", ["a"], "one value is wanted, not a list"),
    ("varchar(60)", {"a": 1}, "one value is wanted, not a dict"),
    ("varchar(60)", object(), "object is no text"),
    ("varchar(60)", Color.RED, "Color is no text"),
    ("json", {1: "a"}, "a key in JSON is a text"),
    ("json", [{"a": {None: 1}}], "a key in JSON is a text"),
]
REFUSED: dict[str, list[Refused]] = {
    "postgresql": [
        *ON_SERVERS,
        ("time", timedelta(hours=30), "is no timedelta"),
        ("timestamp", NINE_DIGITS, "more than six digits"),
        ("timestamp", "2026-02-28 12:30:15 Europe/Berlin", "the text is not a time"),
        ("timestamp", 5, "a datetime is wanted, not int"),
        ("timestamptz", NINE_DIGITS, "more than six digits"),
        ("text", b"a", "bytes is no text"),
        ("money", Decimal("1.23"), "declare the column numeric"),
        ("money", "$1.23", "declare the column numeric"),
        ("integer[]", "12", "a list is wanted, not str"),
        ("integer[]", b"12", "a list is wanted, not bytes"),
        ("integer[]", {1: 2}, "a list is wanted, not dict"),
        ("integer[]", [1.5], "decimals would be rounded"),
        ("positive", 1.5, "decimals would be rounded"),
        ("day", NINE_DIGITS, "more than six digits"),
    ],
    "mysql": [
        *ON_SERVERS,
        ("datetime(6)", NINE_DIGITS, "more than six digits"),
        ("datetime(6)", "10.0.0.1", "the text is not a time"),
        ("datetime(6)", time(3, 4, 5), "a datetime is wanted, not time"),
        ("datetime(6)", 0, "a datetime is wanted, not int"),
        ("datetime(6)", HIGH, "a datetime is wanted, not UUID"),
        ("date", "10.0.0.1", "the text is not a date"),
        ("time(6)", "101", "the text is not a time of day"),
        ("year", 1, "another century"),
        ("year", "26", "another century"),
        ("enum('new', 'paid')", "2", "would be stored as another member"),
        ("enum('new', 'paid')", "NEW", "would be stored as another member"),
        ("enum('new', 'paid')", "p\u00e1id ", "would be stored as another member"),
        ("bit(8)", 0.5, "decimals would be rounded"),
        ("bit(8)", "1", "or bytes"),
        ("bit(64)", -1, "or bytes"),
        ("varbinary(4)", 1, "bytes are wanted"),
        ("binary(4)", b"a", "would be filled up with zeros"),
        ("json", '{"a": 1}', "the text is JSON itself"),
        ("blob", 5, "bytes are wanted"),
    ],
    "sqlite": [
        ("INTEGER", float("nan"), "NaN would be stored as NULL"),
        ("", float("nan"), "NaN would be stored as NULL"),
        ("INTEGER", NOON, "SQLite has no datetime"),
        ("INTEGER", "1e3", "would store this text as another number's"),
        ("INTEGER", " 6", "would store this text as another number's"),
        ("INTEGER", "007", "would store this text as another number's"),
        ("INTEGER", Decimal("0.1000000000000000000001"), "more digits than that"),
        ("INTEGER", LOW, "SQLite has no UUID"),
        ("", LOW, "SQLite has no UUID"),
        ("TEXT", timedelta(days=3), "has no one text"),
        ("TEXT", True, "bool is no text"),
        ("TEXT", Color.RED, "Color is no text"),
        ("NUMERIC", Decimal("99999999999999.99"), "more digits than that"),
        ("NUMERIC(20, 2)", "99999999999999.99", "more digits than that"),
        ("NUMERIC", 2**63 + 1, "more digits than that"),
        ("REAL", 2**53 + 1, "more digits than a double keeps"),
        ("NUMERIC", float("nan"), "NaN would be stored as NULL"),
        ("NUMERIC", "NaN", "NaN would be stored as NULL"),
        ("REAL", " nan", "NaN would be stored as NULL"),
        ("STRING", "007", "would store this text as a number"),
        ("UUID", "1e5", "would store this text as a number"),
        ("EMAIL", Decimal("0.5"), "not Decimal"),
        ("DATE", NOON, "no place for a time of day"),
        ("TIME", time(1, tzinfo=KARACHI), "leave the zone out"),
        ("JSON", 2**70, "too large"),
        ("JSON", {1: "a"}, "a key in JSON is a text"),
    ],
}

TEXTS_FOR_OTHERS: dict[str, list[tuple[str, Any, Any]]] = {
    "postgresql": [("timestamp", ZONED, datetime(2026, 2, 28, 7, 30, 15)), ("text", 0.1 + 0.2, repr(0.1 + 0.2))],  # noqa: DTZ001
    "mysql": [("datetime(6)", ZONED, datetime(2026, 2, 28, 7, 30, 15)), ("varchar(60)", 0.1 + 0.2, repr(0.1 + 0.2))],  # noqa: DTZ001
    "sqlite": [("TEXT", 0.1 + 0.2, repr(0.1 + 0.2)), ("TEXT", float(2**53), "9007199254740992.0")],
}
"""A declared type, a value of another one, and what it is stored as: a database would drop a zone, or digits."""


SHORTENED: dict[str, list[tuple[str, Any, Any]]] = {
    "postgresql": [
        ("timestamp(3)", NOON, NOON.replace(microsecond=123000)),
        ("time(0)", time(1, 2, 3, 400000), time(1, 2, 3)),
        ("numeric(5, 2)", Decimal("1.239"), Decimal("1.24")),
        ("real", 16777217.0, 16777216.0),
        ("char(3)", "a", "a  "),
        ("bpchar", "a ", "a"),
    ],
    "mysql": [
        ("datetime", NOON, NOON.replace(microsecond=0)),
        ("time", time(1, 2, 3, 400000), time(1, 2, 3)),
        ("decimal(5, 2)", Decimal("1.239"), Decimal("1.24")),
        ("float", 16777217.0, 16777216.0),
        ("char(3)", "a ", "a"),
    ],
    "sqlite": [("INTEGER", 1.0, 1), ("INTEGER", True, 1), ("ANY", 1.0, 1)],
}
"""The exceptions: what a column declares is applied to what is written (as told in docs/azure-functions.md, Values).

A ``datetime.now()`` has microseconds, and most columns of MariaDB have none. A key by which rows are found is never
shortened. In SQLite the number stays the same; what is a number is told by its value.
"""


def columns_of(kinds: list[Kind]) -> dict[str, Kind]:
    return {f"c{number}": kind for number, kind in enumerate(kinds)}


def made(database: Database) -> dict[str, Kind]:
    """Make the table with a column of each kind, and write its two rows."""
    columns = columns_of(KINDS[database.kind])
    if database.kind == "postgresql":
        make_types(database)
    declared = ", ".join(f"{name} {kind.declared} NULL" for name, kind in columns.items())
    database.raw(f"CREATE TABLE things (id integer PRIMARY KEY, one integer NOT NULL, {declared})")
    rows = [{"id": at + 1, "one": 1} | {name: kind.written[at] for name, kind in columns.items()} for at in (0, 1)]
    database.writer("things").insert_many(rows=rows)
    return columns


def make_types(database: Database) -> None:
    database.execute("CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy')")
    database.execute("CREATE DOMAIN positive AS integer CHECK (value > 0)")
    database.execute("CREATE DOMAIN day AS timestamp")
    database.execute("CREATE DOMAIN word AS text")


def source(database: Database, cursor: str, key: list[str]) -> SqlAlchemySource:
    return SqlAlchemySource(
        url=database.url,
        table="things",
        cursor_column=cursor,
        pk_columns=key,
        horizon="none",
        engine_provider=database.provider,
    )


def changed(columns: dict[str, Kind], row: Any, at: int) -> list[str]:
    """Return what of a row is not what was written, in value or type."""
    wanted = {name: kind.read[at] for name, kind in columns.items()}
    return [
        f"{columns[name].declared}: {row[name]!r} for {value!r}"
        for name, value in wanted.items()
        if row[name] != value or type(row[name]) is not type(value)
    ]


def delivered(found: SqlAlchemySource) -> list[object]:
    """Return the ids of all rows, read one at a time from checkpoints that went through JSON."""
    checkpoint: JsonObject = {}
    ids: list[object] = []
    while len(ids) < 4:
        page = found.fetch_changes(json.loads(json.dumps(checkpoint)), 1)
        ids += [record["id"] for record in page.records]
        if page.next_checkpoint is None:
            return ids
        checkpoint = page.next_checkpoint
    return ids


def test_14_7_every_type_is_exact_or_refused(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("ERROR", "holdfast")  # it warns of missing indexes and horizons, which are not the point here
    columns = made(database)
    wrong: dict[str, object] = {}

    reader = database.reader("things")
    for at in (0, 1):
        row = reader.get(pk={"id": at + 1})
        wrong[f"reader, row {at + 1}"] = changed(columns, row, at)
    for at, record in enumerate(source(database, "id", ["id"]).fetch_changes({}, 10).records):
        wrong[f"trigger row {at + 1}"] = changed(columns, record, at)

    for name, kind in columns.items():
        wrong[f"cursor of type {kind.declared}"] = wrongly_placed(source(database, name, ["id"]), kind.is_place)
        if not kind.is_place:
            wrong[f"key of type {kind.declared}"] = wrongly_placed(source(database, "one", [name, "id"]), False)
    places = [name for name, kind in columns.items() if kind.is_place]
    wrong["key of all types"] = wrongly_placed(source(database, "one", [*places, "id"]), True)

    for name, kind in columns.items():
        if not kind.is_key:
            wrong[f"key of a table, {kind.declared}"] = misled_by_key(database, f"alone_{name}", kind)
    keys = {name: kind for name, kind in columns.items() if kind.is_key}
    for start in range(0, len(keys), MOST_KEY_COLUMNS):
        some = dict(list(keys.items())[start : start + MOST_KEY_COLUMNS])
        wrong[f"key of a table, {[kind.declared for kind in some.values()]}"] = lost_by_key(database, start, some)
    assert {where: what for where, what in wrong.items() if what != []} == {}


def wrongly_placed(found: SqlAlchemySource, is_place: bool) -> object:
    """Return what is wrong with a cursor or key: rows that are not delivered once each, or one that is not refused."""
    try:
        outcome: object = delivered(found)
    except DbError as error:
        outcome = f"refused: {error}"
    is_right = outcome == [1, 2] if is_place else str(outcome).startswith("refused")
    return [] if is_right else outcome


def lost_by_key(database: Database, number: int, kinds: dict[str, Kind]) -> list[str]:
    """Return what reader and writer do not find again by a key of these types, as it was written and as it is read."""
    table, names = f"keyed_{number}", ", ".join(kinds)
    declared = ", ".join(f"{name} {kind.declared} NOT NULL" for name, kind in kinds.items())
    database.raw(f"CREATE TABLE {table} ({declared}, n integer NOT NULL, PRIMARY KEY ({names}))")
    writer, reader = database.writer(table), database.reader(table)
    written = [{name: kind.written[at] for name, kind in kinds.items()} for at in (0, 1)]
    read = [{name: kind.read[at] for name, kind in kinds.items()} for at in (0, 1)]
    writer.insert_many(rows=[{**key, "n": 0} for key in written])
    wrong = []
    for at, key in enumerate(written + read):
        writer.update(data={"n": at + 1}, pk=key)
        writer.update_many(rows=[{**key, "n": at + 2}])
        row = reader.get(pk=key)
        if row != {**read[at % 2], "n": at + 2}:
            wrong.append(f"{row} for {key}")
    writer.delete_many(pks=read)
    left = database.rows(f"SELECT n FROM {table}")
    return [*wrong, *([f"not deleted: {left}"] if left else [])]


def misled_by_key(database: Database, table: str, kind: Kind) -> list[str]:
    """Return the ways by a key of a type that neither meet its row nor are refused."""
    try:
        database.execute(f"CREATE TABLE {table} (id {kind.declared} NOT NULL, n integer NOT NULL, PRIMARY KEY (id))")
    except DBAPIError:  # the database itself has no such keys
        return []
    writer, reader = database.writer(table), database.reader(table)
    wrong = []
    for at, key in enumerate(kind.written + kind.read):
        ways: dict[str, Callable[[], object]] = {
            "get": partial(reader.get, pk={"id": key}),
            "update": partial(writer.update, data={"n": 1}, pk={"id": key}),
            "upsert": partial(writer.upsert, data={"id": key, "n": 2}, conflict_columns=["id"]),
            "delete": partial(writer.delete, pk={"id": key}),
        }
        try:
            writer.insert(data={"id": kind.written[at % 2], "n": 0})
        except WriteError:  # SQLite's own: an INTEGER that is the key takes no fractions and no text
            continue
        wrong += [f"{way} by {key!r}" for way, act in ways.items() if not is_met_or_refused(database, table, act)]
        database.execute(f"DELETE FROM {table}")
    return wrong


def is_met_or_refused(database: Database, table: str, act: Callable[[], object]) -> bool:
    """Return whether the one row was read or changed, none added, or the key refused."""
    before = database.rows(f"SELECT n FROM {table}")
    try:
        found = act()
    except (ConfigurationError, DbError):
        return database.rows(f"SELECT n FROM {table}") == before
    after = database.rows(f"SELECT n FROM {table}")
    return found is not None or (after != before and len(after) <= 1)


def test_14_7_what_would_be_stored_as_another_value_is_refused(database: Database) -> None:
    cases = REFUSED[database.kind]
    if database.kind == "postgresql":
        make_types(database)
    declared = ", ".join(f"c{number} {case[0]} NULL" for number, case in enumerate(cases))
    database.raw(f"CREATE TABLE things (id integer PRIMARY KEY, {declared})")
    writer = database.writer("things")
    writes: list[Callable[[dict[str, object]], None]] = [
        lambda data: writer.insert(data={"id": 1, **data}),
        lambda data: writer.upsert(data={"id": 1, **data}, conflict_columns=["id"]),
        lambda data: writer.update(data=data, pk={"id": 1}),
    ]
    for number, (kind, value, said) in enumerate(cases):
        for write in writes:
            with pytest.raises(WriteError, match=said) as caught:
                write({f"c{number}": value})
            if said != "too large":  # SQLite's driver says that
                assert f"column 'c{number}'" in str(caught.value), kind
    assert database.rows("SELECT * FROM things") == []


def test_14_7_what_a_database_would_shorten_is_stored_whole(database: Database) -> None:
    for number, (kind, value, expected) in enumerate(TEXTS_FOR_OTHERS[database.kind]):
        database.raw(f"CREATE TABLE things_{number} (id integer PRIMARY KEY, v {kind})")
        database.writer(f"things_{number}").insert(data={"id": 1, "v": value})
        assert database.reader(f"things_{number}").get(pk={"id": 1}) == {"id": 1, "v": expected}


def test_14_7_what_a_column_declares_is_applied_and_nothing_else(database: Database) -> None:
    for number, (kind, value, expected) in enumerate(SHORTENED[database.kind]):
        database.raw(f"CREATE TABLE things_{number} (id integer PRIMARY KEY, v {kind})")
        database.writer(f"things_{number}").insert(data={"id": 1, "v": value})
        [found] = database.reader(f"things_{number}").get(pk={"id": 1}).items() - {("id", 1)}  # type: ignore[union-attr]
        assert found == ("v", expected), kind
