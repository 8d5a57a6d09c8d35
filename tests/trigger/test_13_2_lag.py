"""Issue 13, line 2: the lag is the age of the oldest undelivered row, whatever its column and whoever ticks."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import create_engine, make_url

from holdfast import (
    DbConfig,
    EngineProvider,
    FetchError,
    HandlerError,
    PollContext,
    PollTrigger,
    RetryPolicy,
    RowChange,
    SqlAlchemySource,
    StateStore,
)
from holdfast.core.errors import StoppedError
from holdfast.core.types import JsonObject, SourceDescriptor
from holdfast.database.barrier import Reading
from holdfast.lease.stores.memory import MemoryDocumentStore
from holdfast.trigger.lag import Lag
from holdfast.trigger.sources.protocol import AdapterCapability, FetchResult, Waiting
from tests.clocks import SteppedTimeStore, StillClock
from tests.components.processes import wait_until
from tests.trigger.shop import Shop
from tests.trigger.test_claims import Gauges
from tests.trigger.test_worker import running

T = datetime(2026, 1, 1, tzinfo=UTC)
ROW: tuple[dict[str, object], ...] = ({"id": 1},)
DATABASES = [
    pytest.param("postgres_url", marks=pytest.mark.component("postgres18")),
    pytest.param("mariadb_url", marks=pytest.mark.component("mariadb")),
    "sqlite_url",
]


def after(seconds: float) -> datetime:
    return T + timedelta(seconds=seconds)


def test_13_2_a_row_that_waits_is_none_of_those_that_were_delivered_meanwhile() -> None:
    lag = Lag()
    for second in range(600):
        found = FetchResult(ROW, caught_up=True, waiting=Waiting(None))
        lag.found(found, after(second))
        lag.delivered(found, after(second))
    assert lag.seconds(after(600)) == 1.0


def test_13_2_pages_that_come_without_end_are_as_old_as_the_last_look() -> None:
    lag = Lag()
    for second in range(600):
        found = FetchResult(ROW, exhausted=second % 10 == 9)
        lag.found(found, after(second))
        lag.delivered(found, after(second))
    assert lag.seconds(after(600)) == 1.0
    lag.delivered(FetchResult(ROW), after(605))
    assert lag.seconds(after(606)) == 7.0, "what is behind a full page has been there as long as what was on it"


def test_13_2_while_nothing_can_be_read_rows_may_wait_since_none_did_last() -> None:
    lag = Lag()
    lag.unread(after(0))
    assert lag.seconds(after(5)) == 5.0
    lag.delivered(FetchResult((), caught_up=True), after(10))
    lag.unread(after(30))
    assert lag.seconds(after(30)) == 20.0
    lag.found(FetchResult(ROW, oldest_at=after(25)), after(40))
    assert lag.seconds(after(40)) == 15.0


@dataclass
class OneRow:
    """A source of one's own: a row without a time that comes, waits behind somebody, or cannot be read."""

    result: FetchResult = field(default_factory=lambda: FetchResult((), caught_up=True))
    error: Exception | None = None
    source_descriptor = SourceDescriptor(name="one", kind="test", fingerprint="one")

    def validate(self) -> None: ...

    def open(self) -> None: ...

    def close(self) -> None: ...

    def capability(self) -> AdapterCapability:
        return AdapterCapability()

    def fetch_changes(self, checkpoint: JsonObject, limit: int) -> FetchResult:
        if self.error is not None:
            raise self.error
        return self.result


def change(row: Any, source: SourceDescriptor) -> RowChange:
    return RowChange(event_id="1", op="insert", source=source, cursor=1, pk=dict(row), before=None, after=None)


@dataclass
class Timer:
    """A host that calls a trigger, on a stepped clock."""

    source: OneRow = field(default_factory=OneRow)
    clock: StillClock = field(default_factory=StillClock)
    gauges: Gauges = field(default_factory=Gauges)
    retries: RetryPolicy | None = None

    def __post_init__(self) -> None:
        store = StateStore(SteppedTimeStore(MemoryDocumentStore(), self.clock), clock=self.clock)
        self.trigger = PollTrigger(
            name="one",
            source=self.source,
            checkpoint_store=store,
            normalizer=change,
            retry_policy=self.retries,
            metrics=self.gauges,
            clock=self.clock,
        )

    def tick(self, seconds_later: float = 0.0, handler: Any = len) -> float | None:
        """Return the lag after a tick."""
        self.clock.advance(seconds_later)
        self.trigger.run(timer=None, handler=handler)
        return self.gauges.lag


def test_13_2_lag_and_waiting_go_on_from_tick_to_tick(caplog: pytest.LogCaptureFixture) -> None:
    timer = Timer()
    timer.source.result = FetchResult((), caught_up=True, waiting=Waiting(None), held_back_by=("session 7",))
    with caplog.at_level(logging.WARNING):
        assert [timer.tick(30) for _ in range(3)] == [0.0, 30.0, 60.0]
    assert "Trigger 'one' waits for session 7" in caplog.text


def test_13_2_a_source_that_cannot_be_read_lags_since_nothing_waited_last() -> None:
    timer = Timer()
    assert timer.tick() == 0.0
    timer.source.error = FetchError("the database does not answer")
    with pytest.raises(FetchError):
        timer.tick(20)
    assert timer.gauges.lag == 20.0
    timer.source.error = None
    assert timer.tick(5) == 0.0


def test_13_2_the_lag_is_written_before_a_handler_begins_and_at_each_try() -> None:
    timer = Timer(retries=RetryPolicy(max_retries=2, base_delay_seconds=0.01))
    began = timer.clock.now()
    timer.source.result = FetchResult(ROW, next_checkpoint={"cursor": 1}, caught_up=True, oldest_at=began)
    seen: list[float | None] = []

    def ship(changes: list[RowChange]) -> None:
        seen.append(timer.gauges.lag)
        timer.clock.advance(10)
        raise RuntimeError("no carrier")

    with pytest.raises(HandlerError):
        timer.tick(5, ship)
    assert seen == [5.0, 15.0, 25.0]
    assert timer.gauges.lag == 35.0


class Ledger:
    """A table whose cursor column the database fills, read by a source of its own."""

    def __init__(self, url: str, column: str) -> None:
        self.url = url
        self._provider = EngineProvider()
        self.engine = self._provider.get_engine(DbConfig(connection_url=url))
        self.run(f"CREATE TABLE items (id BIGINT PRIMARY KEY, changed {column})")

    def run(self, statement: str) -> None:
        with self.engine.begin() as connection:
            connection.exec_driver_sql(statement)

    def close(self) -> None:
        self._provider.dispose_all()

    def source(self, **settings: Any) -> SqlAlchemySource:
        return SqlAlchemySource(
            url=self.url,
            table="items",
            cursor_column="changed",
            pk_columns=["id"],
            engine_provider=self._provider,
            **{"horizon": "server_time", **settings},
        )

    def first(self) -> FetchResult:
        """Return the first page that has a row."""
        source = self.source()

        def page() -> FetchResult | None:
            found = source.fetch_changes({}, 10)
            return found if found.records else None

        return wait_until(page, "the row")


TEN_HOURS_WEST = "Etc/GMT+10"
LOCAL = {
    "postgres_url": "timestamp NOT NULL DEFAULT now()",
    "mariadb_url": "DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)",
    "sqlite_url": "TEXT NOT NULL DEFAULT (datetime('now', 'localtime'))",
}
OF_A_FIXED_ZONE = {
    "postgres_url": f"timestamp NOT NULL DEFAULT (now() AT TIME ZONE '{TEN_HOURS_WEST}')",
    "mariadb_url": "DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6))",
    "sqlite_url": "TEXT NOT NULL DEFAULT (datetime('now', '-10 hours'))",
}
DAYS = {
    "postgres_url": "date NOT NULL DEFAULT current_date",
    "mariadb_url": "DATE NOT NULL DEFAULT (CURRENT_DATE)",
    "sqlite_url": "TEXT NOT NULL DEFAULT current_date",
}


@pytest.fixture(params=DATABASES)
def far_west(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, str]]:
    """A database whose local time is ten hours behind UTC, by the name of its fixture."""
    url = request.getfixturevalue(request.param)
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    undo = []
    with engine.connect() as connection:
        if engine.dialect.name == "postgresql":
            name = make_url(url).database
            connection.exec_driver_sql(f"ALTER DATABASE {name} SET TimeZone = '{TEN_HOURS_WEST}'")
        elif engine.dialect.name == "mysql":
            before = connection.exec_driver_sql("SELECT @@global.time_zone").scalar()
            connection.exec_driver_sql("SET GLOBAL time_zone = '-10:00'")
            undo.append(f"SET GLOBAL time_zone = '{before}'")
        else:
            monkeypatch.setenv("TZ", TEN_HOURS_WEST)
            time.tzset()
        yield request.param, url
        for statement in undo:
            connection.exec_driver_sql(statement)
    engine.dispose()
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("columns", [LOCAL, OF_A_FIXED_ZONE], ids=["local", "fixed"])
def test_13_2_the_time_of_a_row_is_told_where_its_column_has_no_zone(
    far_west: tuple[str, str], columns: dict[str, str]
) -> None:
    database, url = far_west
    ledger = Ledger(url, columns[database])
    ledger.run("INSERT INTO items (id) VALUES (1)")
    found = ledger.first()
    assert found.oldest_at is not None
    assert found.newest_at == found.oldest_at
    assert abs(datetime.now(UTC) - found.oldest_at) < timedelta(hours=1)
    ledger.close()


def test_13_2_what_only_the_application_writes_has_no_time_that_is_told(sqlite_url: str) -> None:
    ledger = Ledger(sqlite_url, "TEXT")
    ledger.run("INSERT INTO items VALUES (1, '2026-01-01 00:00:00')")
    source = ledger.source(horizon=None, lookback=5)
    assert source.fetch_changes({}, 10).oldest_at is None
    ledger.close()


@pytest.mark.parametrize("database", DATABASES)
def test_13_2_rows_of_a_day_that_is_not_over_wait(database: str, request: pytest.FixtureRequest) -> None:
    ledger = Ledger(request.getfixturevalue(database), DAYS[database])
    ledger.run("INSERT INTO items (id) VALUES (1)")
    source = ledger.source()
    found = wait_until(lambda: source.fetch_changes({}, 10), "an answer")
    assert list(found.records) == []
    assert found.waiting == Waiting(None), "a day is no moment"
    ledger.close()


class Blind:
    """A horizon that cannot tell yet how far it is safe to read, nor why."""

    name = "server_time"
    writers = None

    def prepare(self, connection: object) -> None: ...

    def advance(self, connection: object) -> Reading:
        return Reading(None)


def test_13_2_where_nothing_may_be_read_yet_rows_are_known_to_wait(sqlite_url: str) -> None:
    ledger = Ledger(sqlite_url, LOCAL["sqlite_url"])
    source = ledger.source()
    source._ready().horizon = Blind()
    assert source.fetch_changes({}, 10).waiting is None
    ledger.run("INSERT INTO items (id) VALUES (1)")
    waiting = source.fetch_changes({}, 10).waiting
    assert waiting is not None
    assert waiting.at is not None
    ledger.close()


# While a handler runs, and while nobody runs it


@pytest.fixture(params=DATABASES)
def gauged(request: pytest.FixtureRequest) -> Iterator[tuple[Shop, Gauges]]:
    gauges = Gauges()
    opened = Shop(request.getfixturevalue(request.param), metrics=gauges)
    yield opened, gauges
    opened.close()


def test_13_2_the_lag_grows_while_a_handler_runs(gauged: tuple[Shop, Gauges]) -> None:
    shop, gauges = gauged
    seen: set[float | None] = set()

    def grows() -> bool:
        seen.add(gauges.lag)
        return len(seen) > 3

    @shop.hf.trigger("orders", cursor="updated_at", poll_seconds=0.01, lease_seconds=1)
    def ship(changes: list[RowChange], context: PollContext) -> None:
        context.transaction.exec_driver_sql("DELETE FROM effects")  # on SQLite no lease can be extended meanwhile
        wait_until(grows, "the lag to grow beside the handler")

    shop.place([1])
    with running(shop.hf):
        wait_until(lambda: len(seen) > 3 and gauges.lag == 0.0, "the row to be delivered")


def test_13_2_a_stopped_trigger_lags_since_it_was_stopped_at_the_latest(gauged: tuple[Shop, Gauges]) -> None:
    shop, gauges = gauged

    @shop.hf.trigger("orders", cursor="updated_at", poll_seconds=0.01)
    def ship(changes: list[RowChange]) -> None: ...

    shop.place([1])
    state, runner = shop.hf.state, shop.hf.runner("orders")
    state.acquire("orders", ttl_seconds=30, source=runner.source.source_descriptor).stop("it is a test")
    before = state.read("orders")
    assert before is not None
    assert before.stopped_at is not None
    with pytest.raises(StoppedError):
        runner.tick()
    first = gauges.lag
    assert first is not None
    assert first >= (before.read_at - before.stopped_at).total_seconds() - 0.1, "the store's time is told by two clocks"
    with running(shop.hf):
        wait_until(lambda: (gauges.lag or 0.0) > first, "the lag to grow although nobody delivers")
