"""How a row could be skipped on SQLite, one test for each trap; and what is refused because nothing is sound."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest

from holdfast import SqlAlchemySource
from holdfast.core.errors import SourceConfigurationError
from holdfast.database.barrier import Reading
from holdfast.trigger.sources.horizons import sqlite
from tests.trigger.late_commits import kinds, plants, scenarios
from tests.trigger.late_commits.items import Count, Items, Poller
from tests.trigger.late_commits.kinds import CursorKind

on_seconds = pytest.mark.parametrize("kind", [kinds.SQLITE_SECONDS], ids=str)
on_time = pytest.mark.parametrize("kind", [kinds.SQLITE_SECONDS, kinds.SQLITE_MILLISECONDS], ids=str)
on_identity = pytest.mark.parametrize("kind", [kinds.SQLITE_IDENTITY], ids=str)


@pytest.fixture
def items(kind: CursorKind, sqlite_url: str) -> Iterator[Items]:
    opened = Items(kind, sqlite_url)
    yield opened
    opened.close()


@on_seconds
def test_a_lower_key_updated_later_in_the_same_second_is_delivered(items: Items) -> None:
    assert scenarios.lower_key_in_the_same_tick(items, items.poller()).lost == frozenset()


@on_seconds
def test_without_a_horizon_a_lower_key_in_the_same_second_is_lost(items: Items) -> None:
    assert scenarios.lower_key_in_the_same_tick(items, items.poller("none")).lost >= {1}


def writer_across_the_tick(items: Items, poller: Poller) -> Count:
    """Row 2 is written; in the same second row 1 is written by a transaction that stays open while that passes."""
    items.execute(items.insert(1, 2))
    poller.poll_until(2)
    for _ in range(scenarios.ATTEMPTS):
        writer = items.session()
        items.execute(items.update(2))
        writer.run(items.update(1))
        if writer.scalar("SELECT changed FROM items WHERE id = 1") == items.changed(2):
            break
        writer.commit()
    items.let_tick_pass(2)
    items.look(poller, 2)
    writer.commit()
    return items.drain(poller)


@on_seconds
def test_a_writer_that_stays_open_while_its_second_passes_is_waited_for(items: Items) -> None:
    assert writer_across_the_tick(items, items.poller()).lost == frozenset()


@on_seconds
def test_without_a_horizon_a_writer_that_stays_open_is_lost(items: Items) -> None:
    assert writer_across_the_tick(items, items.poller("none")).lost >= {1}


@on_time
def test_a_writer_at_work_is_named(items: Items) -> None:
    poller, writer = items.poller(), items.session()
    writer.run(items.insert(1))
    assert poller.poll() == []
    assert poller.held_back_by == ("another connection that is writing",)
    writer.commit()
    assert items.drain(poller).lost == frozenset()


@on_identity
def test_ids_commit_in_order_and_are_not_handed_out_again(items: Items) -> None:
    poller = items.poller()
    items.execute(items.insert(1, 2))
    poller.poll_until(2)
    items.execute("DELETE FROM items WHERE id = 2")
    items.execute(items.insert(3))
    assert items.drain(poller).lost == frozenset()


def do_not_wait_for_the_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sqlite.ServerTimeHorizon, "advance", lambda horizon, connection: Reading(horizon._present(connection))
    )


def do_not_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "_time_expression", lambda facts: "strftime('%Y-%m-%d %H:%M:%f', 'now')")


@on_seconds
@pytest.mark.parametrize(
    ("plant", "scenario"),
    [
        (do_not_wait_for_the_writer, writer_across_the_tick),
        (do_not_round, scenarios.lower_key_in_the_same_tick),
        (plants.read_up_to_the_bound, scenarios.lower_key_in_the_same_tick),
    ],
    ids=lambda given: getattr(given, "__name__", str(given)),
)
def test_a_planted_bug_is_caught(
    items: Items,
    plant: Callable[[pytest.MonkeyPatch], None],
    scenario: Callable[[Items, Poller], Count],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    assert scenario(items, items.poller()).lost >= {1}


def source_of(url: str, cursor: str, horizon: str | None = "auto") -> SqlAlchemySource:
    return SqlAlchemySource(url=url, table="items", cursor_column=cursor, pk_columns=["id"], horizon=horizon)


@on_time
def test_a_read_only_database_is_refused(items: Items, tmp_path: Path) -> None:
    url = f"sqlite:///file:{tmp_path / 'test.db'}?mode=ro&uri=true"
    with pytest.raises(SourceConfigurationError, match="opened read-only"):
        source_of(url, "changed").open()


def table(sqlite_url: str, columns: str) -> None:
    Items(CursorKind("", "sqlite_url", (f"CREATE TABLE items ({columns})",), "server_time"), sqlite_url).close()


def test_a_plain_rowid_is_refused_because_it_is_handed_out_again(sqlite_url: str) -> None:
    table(sqlite_url, "id INTEGER PRIMARY KEY, is_autoincrement INT")
    with pytest.raises(SourceConfigurationError, match="INTEGER PRIMARY KEY AUTOINCREMENT"):
        source_of(sqlite_url, "id").open()


def test_a_real_number_is_not_taken_for_a_time_unless_its_default_is_one(sqlite_url: str) -> None:
    table(sqlite_url, "id INTEGER PRIMARY KEY, plain REAL, days REAL DEFAULT (julianday('now'))")
    source_of(sqlite_url, "days").open()
    with pytest.raises(SourceConfigurationError, match="does not fit column 'plain'"):
        source_of(sqlite_url, "plain", "server_time").open()


def test_the_hour_that_summer_time_repeats_is_read_only_after_it_has_passed_twice(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = Items(kinds.SQLITE_SECONDS, sqlite_url)
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        with items.engine.connect() as connection:

            def bound(moment: str) -> object:
                expression = "(datetime('now', 'localtime'))"
                return sqlite._earliest_local(connection, expression, datetime.fromisoformat(moment))

            assert bound("2026-11-01 04:59:30") == "2026-11-01 00:59:30"
            assert bound("2026-11-01 05:01:30") == "2026-11-01 01:00:00"
            assert bound("2026-11-01 05:59:30") == "2026-11-01 01:00:00"
            assert bound("2026-11-01 06:01:30") == "2026-11-01 01:01:30"
    finally:
        monkeypatch.undo()
        time.tzset()
    items.close()


def test_a_default_in_local_time_is_read(sqlite_url: str) -> None:
    local = "(datetime('now', 'localtime'))"
    statements = (f"CREATE TABLE items (id INTEGER PRIMARY KEY, version INT DEFAULT 1, changed TEXT DEFAULT {local})",)
    items = Items(CursorKind("local", "sqlite_url", statements, "server_time", clock=local), sqlite_url)
    items.execute(items.insert(1))
    assert items.drain(items.poller()) == Count(1, 1, 0, frozenset())
    items.close()
