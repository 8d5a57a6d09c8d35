"""What a trigger says of itself is true: what is proved about updates, how far it lags, why it fails."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Column, Integer, MetaData, String, Table, create_engine, select
from sqlalchemy.engine import Engine

from holdfast import DbBindings, Holdfast, RetryPolicy, RowChange, SqlAlchemySource
from holdfast.cli.trigger import _source_fields
from holdfast.cli.trigger_views import described_source
from holdfast.core import telemetry
from holdfast.core.cursor import KeysetCursor
from holdfast.core.errors import ConfigurationError, DbError, HandlerError, SourceConfigurationError
from holdfast.database.error_text import bounded_traceback
from holdfast.lease.document import failure_of
from holdfast.lease.reset import audit_entries, reset_to_checkpoint, undo
from holdfast.lease.store import StateStore
from holdfast.lease.stores.memory import MemoryDocumentStore
from holdfast.records.history import HistoryFilter
from holdfast.trigger.lag import Lag
from holdfast.trigger.sources.cursor_installation import carry_out, plan_installation, plan_removal
from holdfast.trigger.sources.lookback import Window, identity
from holdfast.trigger.sources.protocol import AdapterCapability, FetchResult
from tests.components.processes import wait_until
from tests.trigger.shop import Shop
from tests.trigger.test_worker import running

LONG_AGO = "2001-01-01 00:00:00"


@dataclass(frozen=True, slots=True)
class Kind:
    """How a database declares a cursor column, and how a person would keep it with a trigger."""

    default_only: str
    client_side: str
    by_hand: tuple[str, ...]
    tampered: tuple[str, ...]


KINDS = {
    "postgres_url": Kind(
        "timestamptz NOT NULL DEFAULT now()",
        "timestamptz",
        (
            "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS "
            "$$BEGIN NEW.changed := now(); RETURN NEW; END$$",
            "CREATE TRIGGER keep BEFORE UPDATE ON items FOR EACH ROW EXECUTE FUNCTION keep()",
        ),
        (
            'CREATE OR REPLACE FUNCTION "{name}"() RETURNS trigger LANGUAGE plpgsql '
            "SET search_path = pg_catalog, pg_temp AS $$BEGIN RETURN NEW; END$$",
        ),
    ),
    "mariadb_url": Kind(
        "TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)",
        "TIMESTAMP(6) NULL",
        ("CREATE TRIGGER keep BEFORE UPDATE ON items FOR EACH ROW SET NEW.changed = NOW(6)",),
        (
            "DROP TRIGGER `{name}`",
            "CREATE TRIGGER `{name}` BEFORE INSERT ON items FOR EACH ROW SET NEW.name = 'x'",
        ),
    ),
    "sqlite_url": Kind(
        "TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now'))",
        "TEXT",
        (
            "CREATE TRIGGER keep AFTER UPDATE ON items BEGIN UPDATE items SET changed = "
            "strftime('%Y-%m-%d %H:%M:%f', 'now') WHERE id = NEW.id; END",
        ),
        (
            'DROP TRIGGER "{name}"',
            'CREATE TRIGGER "{name}" AFTER INSERT ON items BEGIN SELECT 1; END',
        ),
    ),
}


class Place:
    """A table of items on one kind of database."""

    def __init__(self, url: str, kind: Kind) -> None:
        self.url = url
        self.kind = kind
        self.engine: Engine = create_engine(url)

    @property
    def clock_of_sessions(self) -> str:
        """Return what a claim excepts, for on MariaDB each session may set its clock."""
        return ", from sessions that do not set 'timestamp'" if self.engine.dialect.name == "mysql" else ""

    def table(self, column: str | None) -> None:
        declared = "" if column is None else f", changed {column}"
        self.run(f"CREATE TABLE items (id BIGINT PRIMARY KEY, name VARCHAR(40){declared})")

    def run(self, *statements: str) -> None:
        with self.engine.begin() as connection:
            for statement in statements:
                is_sqlite = self.engine.dialect.name == "sqlite"
                connection.exec_driver_sql(statement if is_sqlite else statement.replace("%", "%%"))

    def add(self, *ids: int) -> None:
        self.run(*(f"INSERT INTO items (id, name) VALUES ({each}, 'new')" for each in ids))

    def source(self, **settings: Any) -> SqlAlchemySource:
        return SqlAlchemySource(
            url=self.url,
            **{"table": "items", "cursor_column": "changed", "pk_columns": ["id"], "horizon": "auto", **settings},
        )

    def capability(self, **settings: Any) -> AdapterCapability:
        return self.source(**settings).capability()

    def install(self) -> tuple[str, ...]:
        plan = plan_installation(self.engine, "items", None, "changed", ["id"])
        carry_out(self.engine, plan)
        return plan.statements

    def installed_name(self) -> str:
        because = self.capability().updates_because
        return because.partition("'")[2].partition("'")[0]


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    opened = Place(request.getfixturevalue(request.param), KINDS[request.param])
    yield opened
    opened.engine.dispose()


@pytest.fixture
def mariadb(mariadb_url: str) -> Iterator[Place]:
    opened = Place(mariadb_url, KINDS["mariadb_url"])
    yield opened
    opened.engine.dispose()


def test_13_1_a_default_alone_proves_nothing_about_updates(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.table(place.kind.default_only)
    with caplog.at_level(logging.WARNING):
        found = place.capability()
    assert (found.updates, found.detects_updates, found.horizon) == ("not proved", True, "server_time")
    assert found.covers == "rows that leave 'changed' to the database" + place.clock_of_sessions
    assert found.prove_updates_with == "holdfast trigger install-cursor items --column changed"
    assert "Updates of 'items' are not proved: 'changed' has DEFAULT" in caplog.text
    assert "install-cursor items --column changed" in caplog.text


def test_13_1_a_trigger_that_someone_else_wrote_proves_nothing(place: Place) -> None:
    place.table(place.kind.default_only)
    place.run(*place.kind.by_hand)
    assert place.capability().updates == "not proved"


def test_13_1_who_trusts_the_updates_is_believed_and_keeps_the_checkpoint(place: Place) -> None:
    place.table(place.kind.default_only)
    plain, trusting = place.source(), place.source(updates="trusted")
    assert trusting.capability().updates == "trusted"
    assert trusting.source_descriptor == plain.source_descriptor


def test_13_1_a_lookback_promises_its_window_only(place: Place) -> None:
    """A column that the application fills: whoever commits later than the window is missed."""
    place.table(place.kind.client_side)
    source = place.source(horizon=None, lookback=5, lookback_limit=1000)
    found = source.capability()
    assert (found.safe_from_late_commits, found.horizon) == (False, "none, lookback 5")
    told = dict(_source_fields(described_source(source, None)))["horizon"]
    assert "none is missed" not in told
    assert told.endswith(
        "a row that commits more than 5 s late is missed, and one that comes after 1,000 others of its window "
        "(lookback_limit)"
    )
    assert "more than 90 s late" in str(place.capability(horizon=None, lookback=timedelta(minutes=1.5)).misses)
    place.run("CREATE TABLE numbers (id BIGINT PRIMARY KEY)")
    numbers = place.source(horizon=None, lookback=5, table="numbers", cursor_column="id")
    assert "a row that commits more than 5 behind the newest is missed" in str(numbers.capability().misses)
    place.run("DROP TABLE items")
    place.table(place.kind.default_only)
    assert place.capability(lookback=5).safe_from_late_commits, "the horizon is sound, whatever is read again"


def test_13_1_trust_can_be_said_in_each_place_and_is_checked(sqlite_url: str) -> None:
    place = Place(sqlite_url, KINDS["sqlite_url"])
    place.table(place.kind.default_only)
    hf = Holdfast(sqlite_url)
    hf.trigger("items", cursor="changed", key="id", updates="trusted")(lambda changes: None)
    assert hf.runner("items").source.capability().updates == "trusted"
    source, store = place.source(), StateStore(MemoryDocumentStore())
    db = DbBindings()
    db.trigger(arg_name="changes", source=source, checkpoint_store=store, name="items", updates="trusted")(
        lambda timer, changes: None
    )
    assert source.capability().updates == "trusted"
    for refused in (lambda: place.source(updates="yes"), lambda: hf.trigger("other", cursor="changed", updates="yes")):
        with pytest.raises(SourceConfigurationError, match="updates='yes' is not known"):
            refused()
    with pytest.raises(ConfigurationError, match="is about a cursor column"):
        db.trigger(arg_name="changes", source=OneMethod(source), checkpoint_store=store, updates="trusted")
    place.engine.dispose()


class OneMethod:
    """A source with the one method of azure-functions-db."""

    def __init__(self, inner: SqlAlchemySource) -> None:
        self.source_descriptor = inner.source_descriptor

    def fetch(self, cursor: Any, batch_size: int) -> list[Any]:
        return []


@pytest.mark.parametrize("kept_by", ["ON UPDATE", "the version of the row"])
def test_13_1_what_mariadb_keeps_by_itself_is_proved(kept_by: str, mariadb: Place) -> None:
    if kept_by == "ON UPDATE":
        mariadb.table("TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6)")
    else:
        mariadb.run(
            "CREATE TABLE items (id BIGINT PRIMARY KEY, name VARCHAR(40), changed TIMESTAMP(6) GENERATED ALWAYS AS ROW "
            "START, ended TIMESTAMP(6) GENERATED ALWAYS AS ROW END, PERIOD FOR SYSTEM_TIME(changed, ended)) "
            "WITH SYSTEM VERSIONING"
        )
    found = mariadb.capability(pk_columns=["id"] if kept_by == "ON UPDATE" else ["id", "ended"])
    assert (found.updates, found.prove_updates_with) == ("proved", None)
    assert kept_by in found.updates_because
    covers = "rows that leave 'changed' to the database" if kept_by == "ON UPDATE" else "every row"
    assert found.covers == covers + mariadb.clock_of_sessions


def test_13_1_a_foreign_key_that_changes_rows_on_mariadb_is_named(mariadb: Place) -> None:
    mariadb.run(
        "CREATE TABLE owners (id BIGINT PRIMARY KEY)",
        "CREATE TABLE items (id BIGINT PRIMARY KEY, owner BIGINT, changed TIMESTAMP(6) NOT NULL DEFAULT "
        "CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6), CONSTRAINT owned FOREIGN KEY (owner) REFERENCES owners "
        "(id) ON DELETE SET NULL)",
    )
    found = mariadb.capability()
    assert (found.updates, found.prove_updates_with) == ("not proved", None)
    assert "foreign key 'owned' changes rows without ON UPDATE" in found.updates_because


def test_13_1_rows_with_an_id_for_a_cursor_are_inserts_only(mariadb: Place) -> None:
    mariadb.run("CREATE TABLE items (id BIGINT PRIMARY KEY, changed BIGINT NOT NULL AUTO_INCREMENT UNIQUE)")
    assert mariadb.capability().updates == "inserts only"


def test_13_1_what_install_cursor_wrote_is_proved_and_installing_twice_changes_nothing(place: Place) -> None:
    place.table(place.kind.default_only)
    assert place.install()
    found = place.capability()
    covers = "every row" + place.clock_of_sessions
    assert (found.updates, found.covers, found.prove_updates_with) == ("proved", covers, None)
    assert "which Holdfast wrote" in found.updates_because
    assert "sha256:" in found.updates_because
    assert place.install() == ()


def test_13_1_install_cursor_adds_the_column_that_is_not_there(place: Place) -> None:
    place.table(None)
    place.add(1, 2)
    statements = place.install()
    assert "ADD COLUMN" in statements[0]
    assert statements[-1].startswith("CREATE INDEX")
    assert (place.capability().updates, place.capability().horizon) == ("proved", "server_time")
    assert place.install() == ()
    place.add(3)
    assert delivered_all(place, {1, 2, 3})


def delivered_all(place: Place, wanted: set[int], source: SqlAlchemySource | None = None) -> bool:
    """Poll until every wanted row was delivered; the horizon passes each tick by itself."""
    source = source or place.source()
    checkpoint: dict[str, Any] = {}
    seen: set[int] = set()
    while not wanted <= seen:
        found = source.fetch_changes(checkpoint, 100)
        seen |= {int(str(row["id"])) for row in found.records}
        checkpoint = found.next_checkpoint or checkpoint
    return True


def test_13_1_no_update_escapes_what_was_installed(place: Place) -> None:
    """An update that leaves the column alone, one with an old clock's time, and inserts that bring their own."""
    place.table(place.kind.default_only)
    place.install()
    place.add(1, 2)
    hf = Holdfast(place.url)
    seen: list[RowChange] = []
    hf.trigger("items", cursor="changed", key="id", batch_size=1)(seen.extend)
    runner = hf.runner("items")
    while len(seen) < 2:
        runner.tick()
    place.run(
        "UPDATE items SET name = 'left alone' WHERE id = 1",
        f"UPDATE items SET name = 'late clock', changed = '{LONG_AGO}' WHERE id = 2",
        f"INSERT INTO items (id, name, changed) VALUES (3, 'brought along', '{LONG_AGO}')",
    )
    while len(seen) < 5:
        runner.tick()
    assert {str((change.after or {})["name"]) for change in seen[2:]} == {"left alone", "late clock", "brought along"}
    hf._provider.dispose_all()


def test_13_1_a_trigger_that_was_changed_or_dropped_proves_nothing(place: Place) -> None:
    place.table(place.kind.default_only)
    place.install()
    name = place.installed_name()
    place.run(*(statement.replace("{name}", name) for statement in place.kind.tampered))
    found = place.capability()
    assert found.updates == "not proved"
    assert "not as Holdfast wrote it" in found.updates_because
    assert place.install()
    source = place.source()
    assert source.capability().updates == "proved"
    carry_out(place.engine, plan_removal(place.engine, "items", None, "changed"))
    assert source.capability().updates == "not proved"
    assert plan_removal(place.engine, "items", None, "changed").statements == ()


LATER = {
    "postgresql": "CREATE TRIGGER zzz BEFORE UPDATE ON items FOR EACH ROW EXECUTE FUNCTION keep()",
    "mysql": "CREATE TRIGGER zzz BEFORE UPDATE ON items FOR EACH ROW SET NEW.changed = OLD.changed",
    "sqlite": "CREATE TRIGGER zzz AFTER UPDATE ON items BEGIN UPDATE items SET changed = 'x' WHERE id = NEW.id; END",
}


def test_13_1_a_trigger_that_has_the_last_word_is_named(place: Place) -> None:
    place.table(place.kind.default_only)
    place.install()
    if place.engine.dialect.name == "postgresql":
        place.run(place.kind.by_hand[0])
    place.run(LATER[place.engine.dialect.name])
    found = place.capability()
    assert found.updates == "not proved"
    assert "trigger 'zzz' may change the column after it" in found.updates_because
    with pytest.raises(SourceConfigurationError, match="writing it again does not mend"):
        place.install()


def test_13_1_a_trigger_that_is_switched_off_proves_nothing(postgres_url: str) -> None:
    place = Place(postgres_url, KINDS["postgres_url"])
    place.table(place.kind.default_only)
    place.install()
    place.run("ALTER TABLE items DISABLE TRIGGER USER")
    assert place.capability().updates == "not proved"
    assert place.install()
    assert place.capability().updates == "proved"
    place.engine.dispose()


@pytest.fixture
def partitioned(postgres_url: str) -> Iterator[Place]:
    """A partitioned table with our trigger, of whose partitions one has partitions itself."""
    place = Place(postgres_url, KINDS["postgres_url"])
    column = place.kind.default_only
    place.run(
        f"CREATE TABLE items (id BIGINT PRIMARY KEY, name VARCHAR(40), changed {column}) PARTITION BY RANGE (id)",
        "CREATE TABLE young PARTITION OF items FOR VALUES FROM (1000) TO (9000)",
        "CREATE TABLE old PARTITION OF items FOR VALUES FROM (0) TO (1000) PARTITION BY RANGE (id)",
        "CREATE TABLE oldest PARTITION OF old FOR VALUES FROM (0) TO (1000)",
    )
    place.install()
    yield place
    place.engine.dispose()


PAST_IT = {
    "disabled": (
        ["ALTER TABLE oldest DISABLE TRIGGER USER"],
        ["ALTER TABLE oldest ENABLE TRIGGER USER"],
        "it is disabled or changed on partition 'oldest': ALTER TABLE oldest ENABLE TRIGGER zz_holdfast_cursor_",
    ),
    "a later trigger": (
        [
            KINDS["postgres_url"].by_hand[0],
            "CREATE TRIGGER zzz BEFORE UPDATE ON young FOR EACH ROW EXECUTE FUNCTION keep()",
        ],
        ["DROP TRIGGER zzz ON young"],
        "trigger 'zzz' on partition 'young' may change the column after it",
    ),
    "a later trigger in between": (
        [
            KINDS["postgres_url"].by_hand[0],
            "CREATE TRIGGER zzz BEFORE UPDATE ON old FOR EACH ROW EXECUTE FUNCTION keep()",
        ],
        ["DROP TRIGGER zzz ON old"],
        "trigger 'zzz' on partition 'oldest' may change the column after it",
    ),
}


@pytest.mark.parametrize("past", PAST_IT)
def test_13_1_what_is_written_past_the_trigger_in_a_partition_is_found(partitioned: Place, past: str) -> None:
    source = partitioned.source()
    assert source.capability().updates == "proved"
    statements, undone, because = PAST_IT[past]
    partitioned.run(*statements)
    found = source.capability()
    assert (found.updates, found.covers) == ("not proved", "rows that leave 'changed' to the database")
    assert because in found.updates_because
    with pytest.raises(SourceConfigurationError, match="writing it again does not mend"):
        partitioned.install()
    partitioned.run(*undone)
    assert source.capability().updates == "proved"


def test_13_1_a_partition_of_another_default_is_excepted_from_the_claim(partitioned: Place) -> None:
    carry_out(partitioned.engine, plan_removal(partitioned.engine, "items", None, "changed"))
    assert partitioned.capability().covers == "rows that leave 'changed' to the database"
    partitioned.run("ALTER TABLE oldest ALTER COLUMN changed SET DEFAULT '2001-01-01'")
    found = partitioned.capability()
    assert "but for those written into 'oldest' itself, where its default is another" in found.covers
    partitioned.install()
    assert partitioned.capability().covers == "every row", "the trigger writes it whatever the default is"


def test_13_1_a_session_that_sets_its_clock_on_mariadb_escapes_what_is_claimed(mariadb: Place) -> None:
    """The claim says so, because no trigger can tell: NOW() is what the session has set."""
    mariadb.table(mariadb.kind.default_only)
    mariadb.install()
    mariadb.run("SET STATEMENT timestamp = 978307200 FOR INSERT INTO items (id, name) VALUES (1, 'new')")
    with mariadb.engine.connect() as connection:
        assert "2001" in str(connection.exec_driver_sql("SELECT changed FROM items").scalar())
    assert mariadb.capability().covers == "every row, from sessions that do not set 'timestamp'"


def test_13_1_a_column_the_clock_cannot_fill_is_refused(place: Place) -> None:
    place.table("VARCHAR(40)")
    with pytest.raises(SourceConfigurationError, match="is not one that the database's clock can fill"):
        place.install()


@pytest.mark.parametrize("database", ["postgres_url", "mariadb_url"])
def test_13_1_a_column_that_the_application_filled_can_be_kept_by_the_database(
    database: str, request: pytest.FixtureRequest
) -> None:
    place = Place(request.getfixturevalue(database), KINDS[database])
    place.table(place.kind.client_side)
    place.install()
    assert (place.capability().updates, place.capability().horizon) == ("proved", "server_time")
    place.add(1)
    assert delivered_all(place, {1})
    place.engine.dispose()


def test_13_1_a_sqlite_table_without_rowids_is_kept_too(sqlite_url: str) -> None:
    place = Place(sqlite_url, KINDS["sqlite_url"])
    place.run("CREATE TABLE items (id BIGINT PRIMARY KEY, name TEXT) WITHOUT ROWID", "PRAGMA recursive_triggers = ON")
    place.install()
    assert place.capability().updates == "proved"
    place.add(1)
    place.run("UPDATE items SET name = 'again' WHERE id = 1")
    assert delivered_all(place, {1})
    place.engine.dispose()


@pytest.mark.parametrize("columns", ["rowid TEXT", "rowid TEXT, _rowid_ TEXT", "rowid TEXT, oid TEXT, _rowid_ TEXT"])
def test_13_1_a_sqlite_column_named_as_the_rowid_is_no_rowid(sqlite_url: str, columns: str) -> None:
    place = Place(sqlite_url, KINDS["sqlite_url"])
    place.run(f"CREATE TABLE items (id INTEGER PRIMARY KEY, name TEXT, {columns})")
    place.install()
    assert place.capability().updates == "proved"
    place.add(1)
    place.run("UPDATE items SET changed = '1999-01-01' WHERE id = 1")
    with place.engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM items WHERE changed < '2000'").scalar() == 0
    place.engine.dispose()


class Gauges:
    """Metrics whose gauges can be looked at."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}

    def increment(self, name: str, value: float = 1, *, labels: Mapping[str, str] | None = None) -> None: ...

    def observe(self, name: str, value: float, *, labels: Mapping[str, str] | None = None) -> None: ...

    def set_gauge(self, name: str, value: float, *, labels: Mapping[str, str] | None = None) -> None:
        self.values[name] = value

    @property
    def lag(self) -> float | None:
        return self.values.get(telemetry.METRIC_LAG_SECONDS)

    @property
    def last_success(self) -> float | None:
        return self.values.get(telemetry.METRIC_LAST_SUCCESS_TIMESTAMP)


@pytest.fixture(params=KINDS)
def measured(request: pytest.FixtureRequest) -> Iterator[tuple[Shop, Gauges]]:
    """A shop with its gauges; its state is kept elsewhere, because a writer on SQLite would lock that, too."""
    gauges = Gauges()
    opened = Shop(request.getfixturevalue(request.param), state=MemoryDocumentStore(), metrics=gauges)
    yield opened, gauges
    opened.close()


def test_13_2_rows_that_wait_behind_an_open_transaction_count_as_lag(measured: tuple[Shop, Gauges]) -> None:
    shop, gauges = measured
    seen: list[RowChange] = []
    shop.hf.trigger("orders", cursor="updated_at", batch_size=200)(seen.extend)
    runner = shop.hf.runner("orders")
    is_sqlite = shop.engine.dialect.name == "sqlite"
    with shop.engine.connect() as connection:
        if is_sqlite:  # one writer at a time: what it holds back was committed before it began
            shop.place(range(2, 102))
            connection.exec_driver_sql("UPDATE orders SET status = status")
        else:
            connection.exec_driver_sql("INSERT INTO orders (id, status) VALUES (1, 'new')")
            shop.place(range(2, 102))
        wait_until(lambda: runner.tick() == 0 and (gauges.lag or 0.0) > 0, "the lag of the rows that wait")
        assert seen == []
        connection.rollback()
    wait_until(lambda: runner.tick() == 0 and len(seen) == 100, "every row")
    wait_until(lambda: runner.tick() == 0 and gauges.lag == 0.0, "no lag")


def test_13_2_the_lag_is_written_while_the_handler_fails(measured: tuple[Shop, Gauges]) -> None:
    shop, gauges = measured

    @shop.hf.trigger("orders", cursor="updated_at", batch_size=1)
    def ship(changes: list[RowChange]) -> None:
        raise RuntimeError("no carrier")

    shop.place([1, 2])
    runner = shop.hf.runner("orders")

    def has_failed() -> bool:
        try:
            return runner.tick() > 0
        except HandlerError:
            return True

    wait_until(has_failed, "the first delivery")
    first = gauges.lag or 0.0
    assert first > 0
    assert has_failed()
    assert (gauges.lag or 0.0) > first


def test_13_2_a_row_whose_time_is_not_told_waits_since_it_was_first_seen() -> None:
    lag, began = Lag(), datetime(2026, 1, 1, tzinfo=UTC)
    row = FetchResult([{"id": 1}], caught_up=True)
    lag.found(row, began)
    lag.found(row, began + timedelta(seconds=5))
    assert lag.seconds(began + timedelta(seconds=7)) == 7.0
    lag.delivered(row, began + timedelta(seconds=8))
    assert lag.seconds(began + timedelta(seconds=9)) == 0.0


def test_13_2_the_last_success_is_written_by_a_worker(sqlite_url: str) -> None:
    gauges = Gauges()
    shop = Shop(sqlite_url, metrics=gauges)
    shop.hf.trigger("orders", cursor="updated_at", poll_seconds=0.01)(lambda changes: None)
    with running(shop.hf):
        wait_until(lambda: gauges.last_success is not None, "the last success")
    shop.close()


def failing_shop(shop: Shop, **settings: Any) -> list[bool]:
    """Declare a trigger whose handler fails until the list holds something."""
    mended: list[bool] = []

    @shop.hf.trigger("orders", cursor="updated_at", **settings)
    def ship(changes: list[RowChange]) -> None:
        if not mended:
            raise RuntimeError("no carrier for this parcel")

    shop.place([1])
    return mended


def fails(shop: Shop) -> bool:
    try:
        return shop.hf.runner("orders").tick() > 0
    except HandlerError:
        return True


def kept_failure(shop: Shop) -> Any:
    view = shop.hf.state.read("orders")
    return None if view is None else failure_of(view.document)


def test_13_3_a_failing_trigger_keeps_its_last_error_and_how_many_failed_in_a_row(shop: Shop) -> None:
    mended = failing_shop(shop)
    wait_until(lambda: fails(shop), "the first delivery")
    assert fails(shop)
    kept = kept_failure(shop)
    assert re.fullmatch(rf"RuntimeError at {re.escape(Path(__file__).name)}:\d+", kept["error"]), (
        "its text is in the history"
    )
    assert kept["count"] == 2
    assert kept["at"]
    assert kept["next_try_at"] is None, "whoever calls the tick decides about the next"
    mended.append(True)
    assert shop.hf.runner("orders").tick() == 1
    assert kept_failure(shop) is None


def test_13_3_each_failure_is_in_the_history_with_its_traceback(shop: Shop) -> None:
    failing_shop(shop)
    wait_until(lambda: fails(shop), "the first delivery")
    assert fails(shop)
    found = shop.hf.history.page(HistoryFilter(engine="trigger:orders")).items
    assert sorted((entry.status, entry.attempt) for entry in found) == [("Failed", 1), ("Failed", 2)]
    assert {entry.error for entry in found} == {"RuntimeError: no carrier for this parcel"}
    traceback = found[0].traceback or ""
    assert "in ship" in traceback
    assert "RuntimeError: no carrier for this parcel" in traceback


def test_13_3_a_traceback_is_bounded_and_keeps_its_end() -> None:
    def deep(left: int) -> None:
        if not left:
            raise RuntimeError("x" * 20_000 + " the end")
        deep(left - 1)

    with pytest.raises(RuntimeError) as raised:
        deep(200)
    kept = bounded_traceback(raised.value)
    assert len(kept) < 9000
    assert kept.rstrip().endswith("the end")


def test_13_3_a_worker_tells_when_it_tries_again_and_forgets_what_is_over(sqlite_shop: Shop) -> None:
    mended = failing_shop(sqlite_shop, poll_seconds=0.01)
    with running(sqlite_shop.hf):
        wait_until(lambda: (kept_failure(sqlite_shop) or {}).get("count", 0) >= 2, "two failures")
        kept = kept_failure(sqlite_shop)
        assert kept["next_try_at"] > kept["at"]
        mended.append(True)
        wait_until(lambda: kept_failure(sqlite_shop) is None, "a delivery")


def test_13_3_a_source_that_could_not_be_read_is_forgotten_by_a_round_that_finds_nothing(sqlite_shop: Shop) -> None:
    sqlite_shop.hf.trigger("orders", cursor="updated_at")(lambda changes: None)
    runner = sqlite_shop.hf.runner("orders")
    assert runner.tick() == 0
    with sqlite_shop.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE orders RENAME TO gone")
    with pytest.raises(DbError):
        runner.tick()
    assert kept_failure(sqlite_shop)["count"] == 1
    with sqlite_shop.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE gone RENAME TO orders")
    assert runner.tick() == 0
    assert kept_failure(sqlite_shop) is None


WHOLE_SECONDS = {"postgresql": "timestamptz(0)", "mysql": "DATETIME", "sqlite": "TEXT"}


def test_13_5_a_lookback_sees_the_second_change_within_a_second(place: Place) -> None:
    place.table(WHOLE_SECONDS[place.engine.dialect.name])
    place.run("INSERT INTO items VALUES (1, 'first', '2026-01-01 12:00:00'), (2, 'other', '2026-01-01 12:00:00')")
    source = place.source(lookback=60)
    first = source.fetch_changes({}, 10)
    assert sorted(str(row["name"]) for row in first.records) == ["first", "other"]
    place.run("UPDATE items SET name = 'second' WHERE id = 1")
    second = source.fetch_changes(first.next_checkpoint or {}, 10)
    assert [row["name"] for row in second.records] == ["second"]
    assert list(source.fetch_changes(second.next_checkpoint or {}, 10).records) == []


def test_13_5_a_window_that_an_older_version_kept_is_not_delivered_again() -> None:
    row = KeysetCursor(datetime(2026, 1, 1, tzinfo=UTC), (("id", 1),))
    kept = Window(delivered={identity(row): row.value})
    assert not kept.is_new(row, ("content",))


def other_source_document(shop: Shop, directory: Path) -> Path:
    shop.hf.trigger(name="effects", query="SELECT * FROM effects", cursor="order_id", key="batch", horizon="none")(len)
    runner = shop.hf.runner("effects")
    with shop.engine.begin() as connection:
        connection.exec_driver_sql("INSERT INTO effects VALUES (1, 1, 'b')")
    assert runner.tick() == 1
    view = shop.hf.state.read("effects")
    assert view is not None
    file = directory / "effects.json"
    file.write_text(json.dumps(view.document))
    return file


def test_13_5_a_reset_refuses_the_document_of_another_source(sqlite_shop: Shop, tmp_path: Path) -> None:
    file = other_source_document(sqlite_shop, tmp_path)
    sqlite_shop.hf.trigger("orders", cursor="updated_at")(len)
    sqlite_shop.hf.runner("orders").tick()
    source = sqlite_shop.hf.runner("orders").source.source_descriptor
    for known in (source, None):
        with pytest.raises(ConfigurationError, match="is the document of another source"):
            reset_to_checkpoint(sqlite_shop.hf.state, "orders", file, known)
    own = sqlite_shop.hf.runner("effects").source.source_descriptor
    assert reset_to_checkpoint(sqlite_shop.hf.state, "effects", file, own).checkpoint_after["cursor"]


def test_13_5_a_start_from_the_beginning_after_a_changed_source_is_audited_and_can_be_undone(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[RowChange] = []
    shop.hf.trigger("orders", cursor="updated_at", name="old")(seen.extend)
    shop.place([1, 2])
    wait_until(lambda: shop.hf.runner("old").tick() == 0 and len(seen) == 2, "both orders")
    before = shop.hf.state.load_checkpoint("old")
    changed = Holdfast(shop.hf._config.connection_url)
    changed.trigger("orders", cursor="updated_at", name="old", where="id > 0", on_source_change="reset")(seen.extend)
    with caplog.at_level(logging.WARNING):
        wait_until(lambda: changed.runner("old").tick() == 0 and len(seen) == 4, "both orders again")
    assert "holdfast trigger undo old" in caplog.text
    (entry,) = audit_entries(changed.state, "old")
    assert entry.command == "on_source_change=reset"
    assert (entry.before or {})["checkpoint"] == before
    undo(shop.hf.state, "old")
    assert shop.hf.state.load_checkpoint("old")["cursor"] == before["cursor"]
    assert shop.hf.runner("old").tick() == 0
    assert len(seen) == 4
    changed._provider.dispose_all()


def test_13_5_a_table_of_sqlalchemy_names_itself(sqlite_shop: Shop) -> None:
    orders = Table("orders", MetaData(), Column("id", Integer, primary_key=True), Column("updated_at", String))
    sqlite_shop.hf.trigger(orders, cursor=orders.c.updated_at, key=orders.c.id)(len)
    by_table = sqlite_shop.hf.runner("orders").source.source_descriptor
    sqlite_shop.hf.trigger("orders", cursor="updated_at", key="id", name="by-name")(len)
    assert sqlite_shop.hf.runner("by-name").source.source_descriptor == by_table
    made = SqlAlchemySource(url="sqlite://", table=orders, cursor_column=orders.c.updated_at, pk_columns=[orders.c.id])
    assert (made.settings.table, made.cursor_column, made.pk_columns) == ("orders", "updated_at", ["id"])
    for wrong in (42, select(orders)):
        with pytest.raises(SourceConfigurationError, match="table must be a table's name or a Table"):
            sqlite_shop.hf.trigger(wrong, cursor="updated_at")  # type: ignore[arg-type] # that is the point


def test_13_5_a_semicolon_behind_a_filter_is_taken_off_and_one_within_is_refused(sqlite_shop: Shop) -> None:
    seen: list[RowChange] = []
    sqlite_shop.hf.trigger("orders", cursor="updated_at", where="status = 'a;b' ; ")(seen.extend)
    with sqlite_shop.engine.begin() as connection:
        connection.exec_driver_sql("INSERT INTO orders (id, status) VALUES (1, 'a;b'), (2, 'new')")
    wait_until(lambda: sqlite_shop.hf.runner("orders").tick() == 1, "the order")
    assert [change.pk["id"] for change in seen] == [1]
    with pytest.raises(SourceConfigurationError, match="has a ';' in it"):
        SqlAlchemySource(url="sqlite://", table="t", cursor_column="c", pk_columns=["id"], where="1 = 1; DROP TABLE t")


def test_13_5_a_default_of_the_handler_stays_its_own(sqlite_shop: Shop) -> None:
    given: list[object] = []

    def first(events: list[RowChange], retries: int = 3) -> None:
        given.append(retries)

    def second(events: list[RowChange], context: object = None) -> None:
        given.append(type(context).__name__)

    sqlite_shop.place([1])
    for name, handler in (("first", first), ("second", second)):
        sqlite_shop.hf.trigger("orders", cursor="updated_at", name=name)(handler)
        wait_until(lambda name=name: sqlite_shop.hf.runner(name).tick() == 1, "the order")  # type: ignore[misc]
    assert given == [3, "PollContext"]


def test_13_5_a_retry_policy_has_jitter_and_says_which_errors_it_is_for(sqlite_shop: Shop) -> None:
    policy = RetryPolicy(max_retries=2, base_delay_seconds=4, jitter=0.5, retry_on=(ConnectionError, TimeoutError))
    delays = {policy.delay_for_attempt(0) for _ in range(50)}
    assert all(2 <= delay <= 4 for delay in delays)
    assert len(delays) > 1
    assert policy.retries(ConnectionRefusedError())
    assert not policy.retries(ValueError())
    for wrong in ({"jitter": 2}, {"jitter": -0.1}, {"retry_on": "ValueError"}):
        said = r"^RetryPolicy\((jitter|retry_on)=.* must be .*: .*\.$"
        with pytest.raises(ConfigurationError, match=said) as error:
            RetryPolicy(**wrong)
        assert isinstance(error.value, ValueError), "which azure-functions-db raises"
    calls: list[int] = []
    quick = RetryPolicy(max_retries=2, base_delay_seconds=0.01, retry_on=ConnectionError)

    @sqlite_shop.hf.trigger("orders", cursor="updated_at", retry_policy=quick)
    def ship(changes: list[RowChange]) -> None:
        calls.append(len(changes))
        raise ConnectionError("later") if len(calls) < 3 else ValueError("never")

    sqlite_shop.place([1])
    wait_until(lambda: fails(sqlite_shop), "the delivery")
    assert len(calls) == 3
    assert fails(sqlite_shop)
    assert len(calls) == 4, "an error that no retry helps with was tried again"


def test_13_5_processors_ask_the_policy_which_errors_to_try_again_and_engines_refuse_the_question(
    sqlite_shop: Shop,
) -> None:
    calls: list[int] = []
    policy = RetryPolicy(max_retries=5, base_delay_seconds=0.01, retry_on=ConnectionError)

    @sqlite_shop.hf.processor("totals", start_from="beginning", retry_policy=policy, on_error="dead_letter")
    def totals(messages: list[Any], context: Any) -> None:
        calls.append(len(messages))
        raise ConnectionError("later") if len(calls) < 2 else ValueError("never")

    with sqlite_shop.engine.begin() as connection:
        sqlite_shop.hf.outbox.append(connection, "OrderPlaced", {"order_id": 1})
    with running(sqlite_shop.hf):
        wait_until(lambda: sqlite_shop.hf.dead_letters.count() == 1, "the dead letter")
    assert calls == [1, 1], "an error that no retry helps with was tried again"
    with pytest.raises(ConfigurationError, match="leave out retry_on"):
        sqlite_shop.hf.engine("hmac", queue="hmac", retry_policy=policy)
