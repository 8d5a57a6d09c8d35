"""A table that changes while the process runs is looked up again and the step is tried once more."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from sqlalchemy import event

from holdfast import ConfigurationError, WriteError
from holdfast.binding import base, tables
from holdfast.binding.tables import KEEP_SECONDS, TableCache
from tests.binding.databases import Database
from tests.binding.statements import sent_to
from tests.clocks import SteppedClock


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of tables, as often as they were looked up."""
    names: list[str] = []
    plain = tables.look_up

    def counted(engine: Any, table: str, schema: str | None) -> Any:
        names.append(table)
        return plain(engine, table, schema)

    monkeypatch.setattr(tables, "look_up", counted)
    monkeypatch.setattr(base, "look_up", counted)
    return names


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SteppedClock:
    """A clock that stands still, and a cache that goes by it."""
    clock = SteppedClock()
    monkeypatch.setattr(base, "_tables", TableCache(clock))
    return clock


@pytest.fixture
def items(database: Database, clock: SteppedClock) -> Database:
    database.execute("CREATE TABLE items (id integer PRIMARY KEY, name varchar(40), size integer)")
    database.writer("items").insert(data={"id": 1, "name": "nut", "size": 4})
    database.reader("items").get(pk={"id": 1})  # both know the table from here on
    return database


def test_a_table_is_looked_up_once_for_all(items: Database, looks: list[str]) -> None:
    for number in range(2, 7):
        items.writer("items").insert(data={"id": number, "name": "x", "size": 1})
        assert items.reader("items").get(pk={"id": number}) is not None
    assert looks == []


def test_a_column_that_was_added_can_be_written_at_once(items: Database, looks: list[str]) -> None:
    items.execute("ALTER TABLE items ADD COLUMN color varchar(10)")
    writer = items.writer("items")
    writer.insert(data={"id": 2, "name": "bolt", "size": 1, "color": "red"})
    writer.update(data={"color": "blue"}, pk={"id": 1})
    writer.upsert(data={"id": 3, "color": "green"}, conflict_columns=["id"])
    writer.update_many(rows=[{"id": 3, "color": "grey"}])
    assert items.rows("SELECT id, color FROM items ORDER BY id") == [(1, "blue"), (2, "red"), (3, "grey")]
    assert looks == ["items"], "looked up once more, and known from then on"
    assert items.reader("items").get(pk={"id": 2}) == {"id": 2, "name": "bolt", "size": 1, "color": "red"}


def test_a_column_that_was_added_is_read_after_a_while(items: Database, clock: SteppedClock) -> None:
    """Nothing fails when a column is not asked for, so that what is known of a table is not kept for ever."""
    items.execute("ALTER TABLE items ADD COLUMN color varchar(10)")
    reader = items.reader("items")
    assert reader.query("SELECT * FROM items") == [{"id": 1, "name": "nut", "size": 4, "color": None}]
    assert reader.get(pk={"id": 1}) == {"id": 1, "name": "nut", "size": 4}
    clock.advance(KEEP_SECONDS + 1)
    assert reader.get(pk={"id": 1}) == {"id": 1, "name": "nut", "size": 4, "color": None}


def test_a_column_that_was_dropped_is_missing_from_what_is_read(items: Database, looks: list[str]) -> None:
    items.execute("ALTER TABLE items DROP COLUMN size")
    assert items.reader("items").get(pk={"id": 1}) == {"id": 1, "name": "nut"}
    assert looks == ["items"]


def test_a_column_that_was_dropped_can_no_longer_be_written(items: Database, looks: list[str]) -> None:
    items.execute("ALTER TABLE items DROP COLUMN size")
    writer = items.writer("items")
    with (
        sent_to(items.engine) as sent,
        pytest.raises(ConfigurationError, match=r"no column\(s\) 'size'.* has: id, name"),
    ):
        writer.insert(data={"id": 2, "name": "bolt", "size": 1})
    assert [each.rows for each in sent] == [1], "sent once, refused, looked up, and not sent again"
    writer.insert(data={"id": 2, "name": "bolt"})
    assert items.rows("SELECT id, name FROM items ORDER BY id") == [(1, "nut"), (2, "bolt")]


def test_a_table_that_was_made_anew_with_other_columns(items: Database, looks: list[str]) -> None:
    items.execute("DROP TABLE items")
    items.execute("CREATE TABLE items (code varchar(10) PRIMARY KEY, name varchar(40), weight integer)")
    items.writer("items").insert(data={"code": "A", "name": "nut", "weight": 5})
    assert items.reader("items").get(pk={"code": "A"}) == {"code": "A", "name": "nut", "weight": 5}
    assert looks == ["items"]


def test_a_reader_meets_a_table_that_was_made_anew(items: Database, looks: list[str]) -> None:
    items.execute("DROP TABLE items")
    items.execute("CREATE TABLE items (id integer PRIMARY KEY, weight integer)")
    items.execute("INSERT INTO items VALUES (1, 5)")
    assert items.reader("items").get(pk={"id": 1}) == {"id": 1, "weight": 5}
    assert looks == ["items"]


def test_another_primary_key_with_the_same_columns(items: Database) -> None:
    items.execute("DROP TABLE items")
    items.execute("CREATE TABLE items (id integer, name varchar(40), size integer, PRIMARY KEY (id, name))")
    items.writer("items").insert(data={"id": 1, "name": "nut", "size": 4})
    assert items.reader("items").get(pk={"id": 1, "name": "nut"}) == {"id": 1, "name": "nut", "size": 4}


def test_a_table_that_is_gone_is_said_to_be_gone(items: Database) -> None:
    items.execute("DROP TABLE items")
    with pytest.raises(ConfigurationError, match="Table 'items' not found"):
        items.reader("items").get(pk={"id": 1})
    with pytest.raises(ConfigurationError, match="Table 'items' not found"):
        items.writer("items").insert(data={"id": 2})


def test_a_number_that_was_made_bigger(postgres: Database, clock: SteppedClock) -> None:
    """PostgreSQL is told the type of each value, so that an old type refuses what the new one would take."""
    postgres.execute("CREATE TABLE hits (id integer PRIMARY KEY, seen integer)")
    writer = postgres.writer("hits")
    writer.insert(data={"id": 1, "seen": 5})
    postgres.execute("ALTER TABLE hits ALTER seen TYPE bigint")
    writer.insert(data={"id": 2, "seen": 5_000_000_000})
    postgres.execute("ALTER TABLE hits ALTER seen TYPE text")
    writer.update(data={"seen": "many"}, pk={"id": 1})
    assert postgres.rows("SELECT id, seen FROM hits ORDER BY id") == [(1, "many"), (2, "5000000000")]


def test_plans_that_postgres_keeps_for_a_session_do_not_outlive_a_change(
    postgres: Database, clock: SteppedClock
) -> None:
    """psycopg prepares what it has seen five times; PostgreSQL then refuses a plan whose columns have changed."""
    postgres.execute("CREATE TABLE hits (id integer PRIMARY KEY, seen integer)")
    postgres.execute("INSERT INTO hits VALUES (1, 5)")
    reader = postgres.reader("hits")
    sessions = [postgres.engine.connect() for _ in range(3)]
    for session in sessions:  # three sessions, each with plans
        session.close()
        for _ in range(10):
            reader.query("SELECT * FROM hits")
            reader.get(pk={"id": 1})
    postgres.execute("ALTER TABLE hits ALTER seen TYPE bigint, ADD color text")
    for _ in range(5):
        assert reader.query("SELECT * FROM hits") == [{"id": 1, "seen": 5, "color": None}]
        assert reader.get(pk={"id": 1}) == {"id": 1, "seen": 5}


def test_inside_a_transaction_what_the_database_refused_is_not_tried_again(items: Database, looks: list[str]) -> None:
    writer = items.writer("items")

    def write() -> None:
        with writer.transaction():
            writer.insert(data={"id": 2, "name": "bolt"})
            writer.insert(data={"id": 3, "name": "cog", "size": 1})

    dropping = _when_connected(items, "ALTER TABLE items DROP COLUMN size")
    with pytest.raises(WriteError, match=r"inside a transaction\(\) failed: .*size.* 'items' was altered .* run the"):
        write()
    assert dropping.is_set()
    assert items.rows("SELECT id FROM items") == [(1,)]
    assert looks == []
    with pytest.raises(ConfigurationError, match=r"no column\(s\) 'size'"):
        write()
    assert looks == ["items", "items"], "once for the new transaction, once more to be sure"


def test_inside_a_transaction_what_was_never_sent_is_tried_again(items: Database) -> None:
    writer = items.writer("items")
    items.execute("ALTER TABLE items ADD COLUMN color varchar(10)")
    with writer.transaction():
        writer.insert(data={"id": 2, "name": "bolt"})
        writer.insert(data={"id": 3, "color": "red"})
        writer.update(data={"color": "blue"}, pk={"id": 2})
    assert items.rows("SELECT id, color FROM items ORDER BY id") == [(1, None), (2, "blue"), (3, "red")]


def _when_connected(database: Database, statement: str) -> threading.Event:
    """Run a statement as somebody else when the next transaction has connected, before it has touched anything."""
    done = threading.Event()

    @event.listens_for(database.engine, "checkout")
    def change(*_: object) -> None:
        if not done.is_set():
            done.set()
            database.execute(statement)

    return done


def test_a_wrong_column_stays_wrong_after_the_second_look(items: Database, looks: list[str]) -> None:
    with pytest.raises(ConfigurationError, match=r"no column\(s\) 'colour'"):
        items.writer("items").insert(data={"id": 2, "colour": "red"})
    assert looks == ["items"]


def test_many_threads_that_meet_a_change_look_it_up_a_few_times(items: Database, looks: list[str]) -> None:
    items.execute("ALTER TABLE items ADD COLUMN color varchar(10)")
    together = threading.Barrier(8)
    failed: list[BaseException] = []

    def write(number: int) -> None:
        try:
            together.wait()
            items.writer("items").insert(data={"id": number, "color": "red"})
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=[number]) for number in range(10, 18)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert items.value("SELECT count(*) FROM items WHERE color = 'red'") == 8
    assert len(looks) == 1


def test_a_slow_database_keeps_no_other_waiting(sqlite: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    sqlite.execute("CREATE TABLE slow (id integer PRIMARY KEY)")
    sqlite.execute("CREATE TABLE fast (id integer PRIMARY KEY)")
    started, may_end = threading.Event(), threading.Event()
    plain = tables.look_up

    def look_up(engine: Any, table: str, schema: str | None) -> Any:
        if table == "slow":
            started.set()
            may_end.wait()
        return plain(engine, table, schema)

    monkeypatch.setattr(tables, "look_up", look_up)
    waiting = threading.Thread(target=lambda: sqlite.writer("slow").insert(data={"id": 1}))
    waiting.start()
    started.wait()
    sqlite.writer("fast").insert(data={"id": 1})
    may_end.set()
    waiting.join()
    assert sqlite.rows("SELECT (SELECT count(*) FROM slow), (SELECT count(*) FROM fast)") == [(1, 1)]
