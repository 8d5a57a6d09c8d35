"""[14.6] A horizon over local time is sound whatever zone server and reader are in; changed sequences are noticed.

The rule: [HORIZON-LOCAL].
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import pytest
from sqlalchemy.engine import make_url

from holdfast import Holdfast, SqlAlchemySource
from holdfast.core.errors import ConfigurationError, SourceConfigurationError
from holdfast.trigger.sources.horizons.local_times import LocalTimes
from tests.trigger.late_commits import kinds, scenarios
from tests.trigger.late_commits.items import Count, Items, Poller
from tests.trigger.late_commits.kinds import CursorKind

FAR_EAST, FAR_WEST = "Asia/Karachi", "America/New_York"
UNTIL_UTC = "from sessions whose local time is not behind that of UTC"


def writing_in(url: str, zone: str) -> str:
    """Return the URL with which sessions set their zone when they begin, as drivers and frameworks do."""
    if url.startswith("mysql"):
        return f"{url}&init_command={quote(f'SET time_zone = {zone!r}')}"
    return f"{url}?options={quote(f'-c TimeZone={zone}')}"


@contextmanager
def items_of(kind: CursorKind, url: str) -> Iterator[Items]:
    items = Items(kind, url)
    try:
        yield items
    finally:
        items.close()


@contextmanager
def role_in(items: Items, zone: str, *rights: str) -> Iterator[str]:
    """Make a role that is set to a zone, and yield the URL with which it reads."""
    url = make_url(items.url)
    role = f"{zone[-4:].lower()}_{url.database}"
    for statement in (
        f'CREATE ROLE "{role}" LOGIN',
        f'GRANT {", ".join(("SELECT", *rights))} ON items TO "{role}"',
        f'GRANT pg_read_all_stats TO "{role}"',
        f"ALTER ROLE \"{role}\" SET TimeZone = '{zone}'",
    ):
        items.execute(statement)
    try:
        yield url.set(username=role, query={}).render_as_string(hide_password=False)
    finally:
        items.provider.dispose_all()
        items.execute(f'DROP OWNED BY "{role}"')
        items.execute(f'DROP ROLE "{role}"')


def source_at(items: Items, url: str, **options: Any) -> SqlAlchemySource:
    options = {"horizon": "auto", "horizon_margin_seconds": 0, **options}
    return SqlAlchemySource(
        url=url, table="items", cursor_column="changed", pk_columns=["id"], engine_provider=items.provider, **options
    )


def test_14_6_a_reader_whose_role_is_ahead_of_who_writes_loses_no_late_commit(postgres_url: str) -> None:
    with items_of(kinds.PG_TIMESTAMP, postgres_url) as items, role_in(items, FAR_EAST) as url:
        poller = Poller(source_at(items, url))
        assert scenarios.late_commit(items, poller) == Count(2, 2, 0, frozenset())
        found = poller.source.capability()
        assert found.safe_from_late_commits
        assert found.covers == f"rows that leave 'changed' to the database, {UNTIL_UTC}"


def test_14_6_late_commits_in_utc_are_not_lost_beside_writers_that_are_ahead(postgres_url: str) -> None:
    with items_of(kinds.PG_TIMESTAMP, postgres_url) as items, role_in(items, FAR_EAST, "INSERT") as url:
        ahead = items.session()
        ahead.run(f"SET TIME ZONE '{FAR_EAST}'")
        ahead.run(items.insert(3))
        ahead.commit()
        poller = Poller(source_at(items, url))
        assert scenarios.late_commit(items, poller).lost == {3}, "it is read when UTC is where it was written"


def test_14_6_late_commits_of_a_role_that_is_behind_are_not_lost(postgres_url: str) -> None:
    with (
        items_of(kinds.PG_TIMESTAMP, writing_in(postgres_url, FAR_WEST)) as items,
        role_in(items, FAR_WEST, "UPDATE"),
    ):
        poller = Poller(source_at(items, postgres_url))
        assert scenarios.late_commit(items, poller) == Count(2, 2, 0, frozenset())
        assert f"not behind that of {FAR_WEST}" in poller.source.capability().covers


def test_14_6_the_zone_of_a_role_that_cannot_write_holds_nothing_back(postgres_url: str) -> None:
    with items_of(kinds.PG_TIMESTAMP, postgres_url) as items, role_in(items, FAR_WEST):
        source = source_at(items, postgres_url)
        assert UNTIL_UTC in source.capability().covers
        assert scenarios.late_commit(items, Poller(source)) == Count(2, 2, 0, frozenset())


@pytest.fixture
def mariadb_in(mariadb_url: str) -> Iterator[Any]:
    """Set global variables of the server, which it has again afterwards."""
    items = Items(kinds.MY_DATETIME, mariadb_url)
    before = {name: items.scalar(f"SELECT @@global.{name}") for name in ("time_zone", "init_connect")}

    def set_to(**values: str) -> Items:
        for name, value in values.items():
            items.execute(f'SET GLOBAL {name} = "{value}"')
        items.engine.dispose()
        return items

    yield set_to
    set_to(**before)
    items.close()


def late_commit_below_an_earlier_bound(items: Items, poller: Poller) -> Count:
    """Play a late commit to a reader that has a bound already, from when nobody was at work."""
    items.execute(items.insert(3))
    poller.poll_until(3)
    items.look(poller, 3)
    return scenarios.late_commit(items, poller)


def test_14_6_a_server_that_is_ahead_of_who_writes_loses_no_late_commit(mariadb_in: Any, mariadb_url: str) -> None:
    mariadb_in(time_zone="+02:00").execute("DROP TABLE items")
    with items_of(kinds.MY_DATETIME, writing_in(mariadb_url, "+00:00")) as items:
        poller = Poller(source_at(items, mariadb_url))
        assert late_commit_below_an_earlier_bound(items, poller) == Count(3, 3, 0, frozenset())
        assert UNTIL_UTC in poller.source.capability().covers


def follow_who_is_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted bug: the bound is the local time of the zone furthest ahead, here the reader's or the server's."""
    monkeypatch.setattr(LocalTimes, "bound", property(lambda found: found.zones[-1].earliest))


def test_14_6_a_bound_in_the_zone_of_the_reader_loses_a_row(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    follow_who_is_ahead(monkeypatch)
    with items_of(kinds.PG_TIMESTAMP, postgres_url) as items, role_in(items, FAR_EAST) as url:
        assert scenarios.late_commit(items, Poller(source_at(items, url))).lost == {1}


def test_14_6_a_bound_in_the_zone_of_the_server_loses_a_row(
    mariadb_in: Any, mariadb_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    follow_who_is_ahead(monkeypatch)
    mariadb_in(time_zone="+02:00").execute("DROP TABLE items")
    with items_of(kinds.MY_DATETIME, writing_in(mariadb_url, "+00:00")) as items:
        assert late_commit_below_an_earlier_bound(items, Poller(source_at(items, mariadb_url))).lost == {1}


def test_14_6_who_writes_in_the_zone_of_a_server_that_is_behind_loses_no_late_commit(mariadb_in: Any) -> None:
    items = mariadb_in(time_zone="-05:00")
    poller = items.poller()
    assert late_commit_below_an_earlier_bound(items, poller) == Count(3, 3, 0, frozenset())
    assert "not behind that of -05:00" in poller.source.capability().covers


def test_14_6_a_zone_that_new_sessions_are_given_is_allowed_for(mariadb_in: Any) -> None:
    items = mariadb_in(init_connect="SET time_zone = '-08:00'")
    assert "not behind that of -08:00" in items.source().capability().covers


def test_14_6_ids_stay_in_order_whatever_steps_sessions_take(mariadb_url: str) -> None:
    """The counter is the table's, and no session can be given an id below it."""
    with items_of(kinds.MY_IDENTITY, mariadb_url) as items:
        poller, stepping = items.poller(), items.session()
        stepping.run("SET SESSION auto_increment_increment = 10, auto_increment_offset = 7")
        stepping.run(items.insert(1, 2))
        items.execute(items.insert(3))
        items.look(poller, 3)
        stepping.commit()
        assert items.drain(poller) == Count(3, 3, 0, frozenset())


LOCAL = "(datetime('now', 'LocalTime'))"
LOCAL_ON_SQLITE = CursorKind(
    "sqlite local time",
    "sqlite_url",
    (
        "CREATE TABLE items (id INTEGER PRIMARY KEY, version INT NOT NULL DEFAULT 1, "
        f"changed TEXT NOT NULL DEFAULT {LOCAL})",
    ),
    "server_time",
    clock=LOCAL,
)


@pytest.fixture
def in_karachi(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process is in a zone ahead of UTC."""
    monkeypatch.setenv("TZ", FAR_EAST)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("in_karachi")
def test_14_6_a_process_that_is_ahead_does_not_read_past_one_that_writes_in_utc(sqlite_url: str) -> None:
    with items_of(LOCAL_ON_SQLITE, sqlite_url) as items:
        items.execute("INSERT INTO items (id, changed) VALUES (1, datetime('now', '-1 hour'))")
        items.execute("INSERT INTO items (id, changed) VALUES (2, datetime('now', '+1 hour'))")
        poller = items.poller()
        assert poller.poll() == [1]
        assert UNTIL_UTC in poller.source.capability().covers


DECLARED = {
    "postgresql": ("postgres_url", kinds.PG_TIMESTAMP, FAR_EAST, FAR_EAST),
    "mariadb": ("mariadb_url", kinds.MY_DATETIME, "+05:00", "+05:00"),
    "sqlite": ("sqlite_url", LOCAL_ON_SQLITE, "", FAR_EAST),
}


@pytest.mark.usefixtures("in_karachi")
@pytest.mark.parametrize(("database", "kind", "zone", "declared"), DECLARED.values(), ids=DECLARED)
def test_14_6_a_declared_zone_brings_what_is_written_in_it_at_once_and_no_late_commit_is_lost(
    database: str, kind: CursorKind, zone: str, declared: str, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue(database)
    with items_of(kind, writing_in(url, zone) if zone else url) as items:
        poller = items.poller()
        poller.source = items.source(horizon_margin_seconds=0, cursor_timezone=declared)
        assert poller.source.capability().covers.endswith(f", from sessions in time zone {declared}")
        if database == "sqlite_url":
            items.execute(items.insert(1))
            assert items.drain(poller) == Count(1, 1, 0, frozenset())
        else:
            assert late_commit_below_an_earlier_bound(items, poller) == Count(3, 3, 0, frozenset())


def test_14_6_the_start_tells_that_rows_of_some_zones_come_late(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with items_of(kinds.PG_TIMESTAMP, postgres_url) as items, role_in(items, FAR_EAST, "INSERT"):
        caplog.set_level(logging.WARNING)
        source_at(items, postgres_url).open()
        assert f"what is written in {FAR_EAST} comes 5:00:00 late" in caplog.text
        caplog.clear()
        source_at(items, postgres_url, cursor_timezone=FAR_EAST).open()
        assert "late" not in caplog.text


ZONED = {
    "postgresql timestamptz": ("postgres_url", kinds.PG_TIMESTAMPTZ),
    "mariadb timestamp": ("mariadb_url", kinds.MY_TIMESTAMP),
    "sqlite utc": ("sqlite_url", kinds.SQLITE_SECONDS),
}


@pytest.mark.parametrize(("database", "kind"), ZONED.values(), ids=ZONED)
def test_14_6_a_column_that_knows_its_zone_depends_on_none_and_takes_none(
    database: str, kind: CursorKind, request: pytest.FixtureRequest
) -> None:
    with items_of(kind, request.getfixturevalue(database)) as items:
        assert items.source().capability().covers.startswith("rows that leave 'changed' to the database")
        assert "from sessions whose" not in items.source().capability().covers
        with pytest.raises(SourceConfigurationError, match="cursor_timezone='UTC' is for a column"):
            items.source(cursor_timezone="UTC").open()


UNKNOWN = {
    "postgresql": ("postgres_url", kinds.PG_TIMESTAMP, "does not know the time zone 'Mars/Olympus'"),
    "mariadb": ("mariadb_url", kinds.MY_DATETIME, "cannot look up the time zone 'Mars/Olympus'"),
    "sqlite": ("sqlite_url", LOCAL_ON_SQLITE, "no time zone 'Mars/Olympus'"),
}


@pytest.mark.parametrize(("database", "kind", "message"), UNKNOWN.values(), ids=UNKNOWN)
def test_14_6_an_unknown_zone_is_refused(
    database: str, kind: CursorKind, message: str, request: pytest.FixtureRequest
) -> None:
    with (
        items_of(kind, request.getfixturevalue(database)) as items,
        pytest.raises(SourceConfigurationError, match=message),
    ):
        items.source(cursor_timezone="Mars/Olympus").open()


def test_14_6_a_zone_is_no_setting_of_an_outbox(sqlite_url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"cursor_timezone=… does not go with strategy='outbox'"):
        Holdfast(sqlite_url).trigger("mail", strategy="outbox", cursor_timezone="UTC")


def test_14_6_a_sequence_that_begins_to_cache_is_noticed_by_the_next_sample(postgres_url: str) -> None:
    with items_of(kinds.PG_IDENTITY, postgres_url) as items:
        poller = items.poller()
        items.execute(items.insert(1))
        poller.poll_until(1)
        items.execute("ALTER SEQUENCE items_id_seq CACHE 50")
        slow = items.session()
        slow.run(items.insert(2))
        slow.commit()
        items.execute(items.insert(52))
        with pytest.raises(SourceConfigurationError, match=r"caches 50 ids per session.*reconnect the sessions"):
            poller.poll()
        slow.run(items.insert(3))
        slow.commit()
        items.execute("ALTER SEQUENCE items_id_seq CACHE 1")
        assert items.drain(poller) == Count(4, 4, 0, frozenset())


def test_14_6_another_sequence_under_a_running_trigger_is_noticed_too(postgres_url: str) -> None:
    with items_of(kinds.PG_IDENTITY, postgres_url) as items:
        poller = items.poller()
        items.execute(items.insert(1))
        poller.poll_until(1)
        items.execute("ALTER TABLE items ALTER id DROP IDENTITY")
        items.execute("CREATE SEQUENCE other START 100 CACHE 20")
        items.execute("ALTER TABLE items ALTER id SET DEFAULT nextval('other')")
        with pytest.raises(SourceConfigurationError, match="Sequence other caches 20 ids"):
            poller.poll()
