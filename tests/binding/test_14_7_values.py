"""Line 7: what other programs stored, and sessions that are set up otherwise, change no value in silence either."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import pytest

from holdfast import DbConfig, DbReader, DbWriter, WriteError
from tests.binding.databases import Database

KARACHI = timezone(timedelta(hours=5))
NOON_IN_KARACHI = datetime(2026, 2, 28, 12, 30, tzinfo=KARACHI)
IN_UTC = NOON_IN_KARACHI.astimezone(UTC).replace(tzinfo=None)


def test_14_7_what_others_stored_in_sqlite_is_read_as_it_is(sqlite: Database) -> None:
    sqlite.execute(
        "CREATE TABLE things (id INTEGER PRIMARY KEY, n NUMERIC, p NUMERIC(10, 2), s STRING, u UUID, at TIMESTAMPTZ, "
        "b BLOB, t TEXT)"
    )
    sqlite.execute(
        "INSERT INTO things VALUES "
        "(1, 9007199254740993, 1.239, 'abc', 'AB-1', '2026-02-28T12:30:00+05:00', 'text', 'x'), "
        "(2, 99999999999999.99, 5, '007', '00000000-0000-0000-0000-000000000001', 1767225600, 7, '007')"
    )
    [first, second] = (sqlite.reader("things").get(pk={"id": number}) for number in (1, 2))
    assert first == {
        "id": 1,
        "n": Decimal("9007199254740993"),
        "p": Decimal("1.239"),
        "s": "abc",
        "u": "AB-1",
        "at": NOON_IN_KARACHI,
        "b": "text",
        "t": "x",
    }
    assert second is not None
    assert second["n"] == Decimal("99999999999999.98"), "SQLite itself has kept no more of it"
    assert (str(second["p"]), second["s"], second["at"], second["b"], second["t"]) == ("5.00", 7, 1767225600, 7, "007")


@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_14_7_a_zone_is_not_lost_in_a_column_without_one(request: pytest.FixtureRequest, kind: str) -> None:
    """PostgreSQL would take the zone of the session for it, and the driver of MariaDB leave it out."""
    database: Database = request.getfixturevalue(kind)
    local: dict[str, object] = (
        {"options": "-c TimeZone=Asia/Tokyo"} if kind == "postgres" else {"init_command": "SET time_zone = '+09:00'"}
    )
    config = DbConfig(connection_url=database.url, connect_args=local)
    column = "timestamp" if kind == "postgres" else "datetime"
    database.execute(f"CREATE TABLE visits (id integer PRIMARY KEY, at {column})")
    with DbWriter(db_config=config, table="visits") as writer, DbReader(db_config=config, table="visits") as reader:
        writer.insert(data={"id": 1, "at": NOON_IN_KARACHI})
        assert reader.get(pk={"id": 1}) == {"id": 1, "at": IN_UTC}
        if kind == "mariadb":
            sql = "SELECT id FROM visits WHERE at = :at"
            assert reader.scalar(sql, params={"at": NOON_IN_KARACHI}) == 1
            assert list(reader.stream(sql, params={"at": NOON_IN_KARACHI})) == [{"id": 1}]


def test_14_7_a_timestamp_of_mariadb_takes_moments_in_sessions_of_utc_only(mariadb: Database) -> None:
    """It takes what it is told for local time, so that UTC would be another moment."""
    mariadb.execute("CREATE TABLE visits (id integer PRIMARY KEY, at timestamp NOT NULL DEFAULT current_timestamp())")
    local = DbConfig(connection_url=mariadb.url, connect_args={"init_command": "SET time_zone = '+09:00'"})
    with DbWriter(db_config=local, table="visits") as writer:
        writes: list[Callable[[], None]] = [
            lambda: writer.insert(data={"id": 1, "at": NOON_IN_KARACHI}),
            lambda: writer.insert(data={"id": 1, "at": NOON_IN_KARACHI.isoformat()}),
            lambda: writer.insert_many(rows=[{"id": 1, "at": IN_UTC}, {"id": 2, "at": NOON_IN_KARACHI}]),
            lambda: writer.update(data={"at": NOON_IN_KARACHI}, pk={"id": 1}),
        ]
        for write in writes:
            with pytest.raises(WriteError, match=r"Column 'at' is a TIMESTAMP, which this session keeps in .* \+09:00"):
                write()
        writer.insert(data={"id": 3, "at": IN_UTC})
    mariadb.writer("visits").insert(data={"id": 4, "at": NOON_IN_KARACHI})
    assert mariadb.rows("SELECT id, UNIX_TIMESTAMP(at) FROM visits ORDER BY id") == [
        (3, int(IN_UTC.replace(tzinfo=timezone(timedelta(hours=9))).timestamp())),
        (4, int(NOON_IN_KARACHI.timestamp())),
    ]


@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_14_7_a_member_that_an_enum_got_later_is_read(request: pytest.FixtureRequest, kind: str) -> None:
    database: Database = request.getfixturevalue(kind)
    if kind == "postgres":
        database.execute("CREATE TYPE mood AS ENUM ('sad')")
        database.execute("CREATE TABLE days (id integer PRIMARY KEY, m mood)")
    else:
        database.execute("CREATE TABLE days (id integer PRIMARY KEY, m ENUM('sad'))")
    database.writer("days").insert(data={"id": 1, "m": "sad"})
    grow = (
        "ALTER TYPE mood ADD VALUE 'happy'" if kind == "postgres" else "ALTER TABLE days MODIFY m ENUM('sad', 'happy')"
    )
    database.execute(grow)
    database.execute("INSERT INTO days VALUES (2, 'happy')")
    reader = database.reader("days")
    assert [reader.get(pk={"id": number}) for number in (1, 2)] == [{"id": 1, "m": "sad"}, {"id": 2, "m": "happy"}]


def test_14_7_intervals_of_the_calendar_are_text_for_readers_only(postgres: Database) -> None:
    """psycopg takes a year for 365 days; a handler's own statements are left as their author knows them."""
    sql = "SELECT interval '1 year 1 day' AS a, interval '36 hours' AS b"
    reader = postgres.reader()
    expected = {"a": "1 year 1 day", "b": timedelta(hours=36)}
    assert reader.query(sql) == [expected]
    assert list(reader.stream(sql)) == [expected]
    with postgres.engine.connect() as connection:
        assert connection.exec_driver_sql(sql).one() == (timedelta(days=366), timedelta(hours=36))
