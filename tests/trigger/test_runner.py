"""The trigger's promises, on SQLite, PostgreSQL and MariaDB: every change delivered, in order, committed once."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import text

from holdfast import (
    ConfigurationError,
    FetchError,
    HandlerError,
    LostLeaseError,
    MetricsCollector,
    PollContext,
    PollRunner,
    PollTrigger,
    RetryPolicy,
    RowChange,
    SourceConfigurationError,
    SourceDescriptor,
    SqlAlchemySource,
)
from holdfast.core import telemetry
from holdfast.core.types import CursorValue, RawRecord
from tests.components.processes import wait_until
from tests.trigger.shop import RECORD_EFFECT, Shop, effect_rows, order_ids


def drained(runner: PollRunner, is_done: Callable[[], bool]) -> None:
    """Tick until the condition holds: a time horizon lets the newest tick pass first."""

    def done() -> bool:
        runner.tick()
        return is_done()

    wait_until(done, "all changes delivered")


def test_every_row_is_delivered_once_in_order_over_many_batches(shop: Shop) -> None:
    seen: list[int] = []

    @shop.hf.trigger("orders", cursor="updated_at", batch_size=100)
    def ship(changes: list[RowChange]) -> None:
        seen.extend(order_ids(changes))

    shop.place(range(250))
    drained(shop.hf.runner("orders"), lambda: len(seen) >= 250)
    assert seen == list(range(250))


def test_an_update_is_delivered_again_with_a_new_event_id(shop: Shop) -> None:
    events: list[RowChange] = []

    @shop.hf.trigger("orders", cursor="updated_at")
    def ship(changes: list[RowChange]) -> None:
        events.extend(changes)

    shop.place([1, 2])
    runner = shop.hf.runner("orders")
    drained(runner, lambda: len(events) >= 2)
    now = {"sqlite": "strftime('%Y-%m-%d %H:%M:%f', 'now')", "postgresql": "now()", "mysql": "NOW(6)"}
    with shop.engine.begin() as connection:
        moment = now[shop.engine.dialect.name]
        connection.execute(text(f"UPDATE orders SET status = 'paid', updated_at = {moment} WHERE id = 1"))
    drained(runner, lambda: len(events) >= 3)
    last = events[-1]
    assert last.pk == {"id": 1}
    assert last.after is not None
    assert last.after["status"] == "paid"
    assert len({event.event_id for event in events}) == 3


def test_a_failing_handler_stops_the_trigger_at_its_batch(shop: Shop) -> None:
    attempts: list[list[int]] = []

    @shop.hf.trigger("orders", cursor="updated_at", batch_size=2)
    def ship(changes: list[RowChange]) -> None:
        attempts.append(order_ids(changes))
        if 3 in attempts[-1]:
            raise RuntimeError("no stock")

    shop.place(range(1, 6))
    runner = shop.hf.runner("orders")
    with pytest.raises(HandlerError, match="no stock"):
        wait_until(lambda: runner.tick() and False, "the handler to fail")
    with pytest.raises(HandlerError):
        runner.tick()
    assert attempts == [[1, 2], [3, 4], [3, 4]]
    view = shop.hf.state.read("orders")
    assert view is not None
    assert view.checkpoint["cursor"]["tiebreaker"] == {"id": 2}
    assert view.lease is not None
    assert view.lease.owner_id is None, "the lease was not released after the failure"


def test_a_retry_policy_tries_again_with_a_growing_attempt(shop: Shop) -> None:
    attempts: list[int] = []

    @shop.hf.trigger("orders", cursor="updated_at", retry_policy=RetryPolicy(max_retries=2, base_delay_seconds=0.001))
    def ship(changes: list[RowChange], context: PollContext) -> None:
        attempts.append(context.attempt)
        if context.attempt < 3:
            raise RuntimeError("not yet")

    shop.place([1])
    drained(shop.hf.runner("orders"), lambda: len(attempts) >= 3)
    assert attempts == [1, 2, 3]


def test_an_async_handler_gets_events_and_an_awaitable_transaction(shop: Shop) -> None:
    loops: set[int] = set()

    @shop.hf.trigger("orders", cursor="updated_at")
    async def ship(changes: list[RowChange], context: PollContext) -> None:
        await asyncio.sleep(0)
        loops.add(id(asyncio.get_running_loop()))
        await context.transaction.execute(RECORD_EFFECT, effect_rows(changes, context))

    shop.place(range(5))
    drained(shop.hf.runner("orders"), lambda: len(shop.effects()) >= 5)
    assert shop.effects() == list(range(5))
    assert len(loops) == 1


def test_effects_in_the_transaction_commit_with_the_checkpoint(shop: Shop) -> None:
    @shop.hf.trigger("orders", cursor="updated_at", batch_size=3)
    def ship(changes: list[RowChange], context: PollContext) -> None:
        context.transaction.execute(RECORD_EFFECT, effect_rows(changes, context))

    shop.place(range(10))
    drained(shop.hf.runner("orders"), lambda: len(shop.effects()) >= 10)
    assert shop.effects() == list(range(10))


def test_a_failed_handler_leaves_no_effects(shop: Shop) -> None:
    @shop.hf.trigger("orders", cursor="updated_at", retry_policy=RetryPolicy(max_retries=1, base_delay_seconds=0.001))
    def ship(changes: list[RowChange], context: PollContext) -> None:
        context.transaction.execute(RECORD_EFFECT, effect_rows(changes, context))
        if context.attempt == 1:
            raise RuntimeError("half-way")

    shop.place(range(4))
    drained(shop.hf.runner("orders"), lambda: len(shop.effects()) >= 4)
    assert shop.effects() == list(range(4)), "the first attempt's effects were kept"


def take_lease_by_force(shop: Shop) -> None:
    """Do what a takeover after expiry does, without waiting: the present lease is cut short and taken."""
    state = shop.hf.state
    name = state.document_name("orders")
    snapshot = state.documents.read(name)
    assert snapshot is not None
    assert snapshot.store_time is not None
    from datetime import timedelta

    from holdfast.core.types import OwnerId
    from holdfast.lease import document as doc

    taken = doc.acquire(
        doc.parse(snapshot.content, name),
        poller_name="orders",
        source=None,
        owner_id=OwnerId("usurper"),
        ttl=timedelta(seconds=60),
        skew_margin=timedelta(0),
        now=snapshot.store_time + timedelta(days=1),
    )
    state.documents.replace(name, doc.render(taken), snapshot.etag)


def test_a_holder_that_lost_its_lease_can_change_nothing(shop: Shop) -> None:
    """[FENCE-1] The takeover happens while the handler runs: effects roll back, the checkpoint stays."""

    @shop.hf.trigger("orders", cursor="updated_at")
    def ship(changes: list[RowChange], context: PollContext) -> None:
        if shop.engine.dialect.name == "sqlite":  # its writer would lock the usurper out: take over first
            take_lease_by_force(shop)
            context.transaction.execute(RECORD_EFFECT, effect_rows(changes, context))
        else:
            context.transaction.execute(RECORD_EFFECT, effect_rows(changes, context))
            take_lease_by_force(shop)

    shop.place(range(3))
    runner = shop.hf.runner("orders")
    with pytest.raises(LostLeaseError, match=r"usurper|was lost while a batch was handled"):
        wait_until(lambda: runner.tick() and False, "the commit to be refused")
    view = shop.hf.state.read("orders")
    assert view is not None
    assert shop.effects() == []
    assert view.checkpoint == {}
    assert view.lease is not None
    assert view.lease.owner_id == "usurper"


def test_a_handler_that_ends_the_transaction_itself_is_told_so(sqlite_shop: Shop) -> None:
    @sqlite_shop.hf.trigger("orders", cursor="updated_at")
    def ship(changes: list[RowChange], context: PollContext) -> None:
        context.transaction.execute(RECORD_EFFECT, effect_rows(changes, context))
        context.transaction.commit()

    sqlite_shop.place([1])
    runner = sqlite_shop.hf.runner("orders")
    with pytest.raises(HandlerError, match=r"commit\(\) on context\.transaction, which is refused"):
        wait_until(lambda: runner.tick() and False, "the handler's mistake to be found")


def test_progress_told_by_the_handler_is_visible_meanwhile(sqlite_shop: Shop) -> None:
    seen: list[Any] = []

    @sqlite_shop.hf.trigger("orders", cursor="updated_at")
    def ship(changes: list[RowChange], context: PollContext) -> None:
        context.heartbeat({"done": 1, "of": len(changes)})
        view = sqlite_shop.hf.state.read("orders")
        assert view is not None
        seen.append(view.document["lease"]["progress"])

    sqlite_shop.place([1, 2])
    drained(sqlite_shop.hf.runner("orders"), lambda: bool(seen))
    assert seen == [{"done": 1, "of": 2}]


def test_a_tick_that_finds_the_lease_held_delivers_nothing(sqlite_shop: Shop) -> None:
    @sqlite_shop.hf.trigger("orders", cursor="updated_at")
    def ship(changes: list[RowChange]) -> None:
        raise AssertionError("delivered without the lease")

    sqlite_shop.place([1])
    held = sqlite_shop.hf.state.acquire("orders", ttl_seconds=30)
    assert sqlite_shop.hf.runner("orders").tick() == 0
    held.release()


def test_a_tick_stops_at_its_deadline_and_at_its_batch_limit(sqlite_shop: Shop) -> None:
    batches: list[int] = []

    def declare(name: str, **limits: Any) -> PollRunner:
        @sqlite_shop.hf.trigger("orders", name=name, cursor="updated_at", batch_size=1, **limits)
        def ship(changes: list[RowChange]) -> None:
            batches.append(len(changes))

        return sqlite_shop.hf.runner(name)

    sqlite_shop.place(range(10))
    deadline = declare("deadline", max_batches_per_tick=100, tick_deadline_seconds=0.0)
    wait_until(deadline.tick, "the first tick with rows")
    assert batches == [1]
    limit = declare("limit", max_batches_per_tick=4)
    assert wait_until(limit.tick, "the second trigger's tick") == 4


class CountingMetrics:
    """Remembers every metric."""

    def __init__(self) -> None:
        self.counters: dict[tuple[str, str], float] = {}
        self.names: set[str] = set()

    def increment(self, name: str, value: float = 1, *, labels: Any = None) -> None:
        key = (name, str((labels or {}).get("result") or (labels or {}).get("error_type") or ""))
        self.counters[key] = self.counters.get(key, 0) + value
        self.names.add(name)

    def observe(self, name: str, value: float, *, labels: Any = None) -> None:
        self.names.add(name)

    def set_gauge(self, name: str, value: float, *, labels: Any = None) -> None:
        self.names.add(name)


def test_metrics_and_logs_tell_each_batch_once(postgres_url: str, caplog: pytest.LogCaptureFixture) -> None:
    metrics = CountingMetrics()
    assert isinstance(metrics, MetricsCollector)
    shop = Shop(postgres_url, metrics=metrics)
    fail = threading.Event()

    @shop.hf.trigger("orders", cursor="updated_at", batch_size=2)
    def ship(changes: list[RowChange]) -> None:
        if fail.is_set():
            raise RuntimeError("boom")

    shop.place(range(4))
    runner = shop.hf.runner("orders")
    with caplog.at_level(logging.INFO, "holdfast"):
        wait_until(
            lambda: metrics.counters.get((telemetry.METRIC_EVENTS_TOTAL, ""), 0) >= 4 or runner.tick() < 0, "events"
        )
        fail.set()
        shop.place([9])
        with pytest.raises(HandlerError):
            wait_until(lambda: runner.tick() and False, "the failure")
    assert metrics.counters[telemetry.METRIC_BATCHES_TOTAL, "success"] == 2
    assert metrics.counters[telemetry.METRIC_BATCHES_TOTAL, "failure"] == 1
    assert metrics.counters[telemetry.METRIC_FAILURES_TOTAL, "RuntimeError"] == 1
    known = {value for name, value in vars(telemetry).items() if name.startswith("METRIC_")}
    assert metrics.names == known, "a metric of the set was not told, or one outside it was"
    records = [record for record in caplog.records if getattr(record, "event", "") == "batch_complete"]
    assert len(records) == 2
    fields = vars(records[0])
    for field in ("poller_name", "batch_id", "lease_owner", "fetched_count", "checkpoint_after", "commit_duration_ms"):
        assert fields[field] not in (None, ""), field
    shop.close()


def test_a_metrics_back_end_that_fails_fails_no_batch(sqlite_url: str) -> None:
    class Broken(CountingMetrics):
        def increment(self, name: str, value: float = 1, *, labels: Any = None) -> None:
            raise OSError("metrics are down")

    shop = Shop(sqlite_url, metrics=Broken())
    seen: list[int] = []

    @shop.hf.trigger("orders", cursor="updated_at")
    def ship(changes: list[RowChange]) -> None:
        seen.extend(order_ids(changes))

    shop.place([1])
    drained(shop.hf.runner("orders"), lambda: bool(seen))
    assert seen == [1]
    shop.close()


class Numbers:
    """A source with the one method of azure-functions-db."""

    source_descriptor = SourceDescriptor(name="numbers", kind="test", fingerprint="sha256:numbers")
    cursor_column = "n"

    @property
    def pk_columns(self) -> list[str]:
        return ["n"]

    def fetch(self, cursor: CursorValue | None, batch_size: int) -> list[RawRecord]:
        start = 0 if cursor is None else int(str(cursor[0])) + 1  # type: ignore[index]  # our own cursor is a tuple
        return [{"n": n} for n in range(start, min(start + batch_size, 5))]


def test_a_source_with_only_fetch_is_accepted(sqlite_shop: Shop) -> None:
    seen: list[object] = []
    trigger = PollTrigger(
        name="numbers", source=Numbers(), checkpoint_store=sqlite_shop.hf.state, batch_size=2, max_batches_per_tick=9
    )
    assert trigger.run(timer=None, handler=lambda changes: seen.extend(c.pk["n"] for c in changes)) == 5
    assert trigger.run(timer=None, handler=lambda changes: seen.append("again")) == 0
    assert seen == [0, 1, 2, 3, 4]


def test_a_normalizer_without_cursor_is_refused_instead_of_repeating_for_ever(sqlite_shop: Shop) -> None:
    def cursorless(record: RawRecord, source: SourceDescriptor) -> RowChange:
        return RowChange(event_id="x", op="upsert", source=source, cursor=None, pk={}, before=None, after=dict(record))

    trigger = PollTrigger(
        name="numbers", source=Numbers(), checkpoint_store=sqlite_shop.hf.state, normalizer=cursorless
    )
    with pytest.raises(FetchError, match="no cursor"):
        trigger.run(timer=None, handler=lambda changes: None)


@pytest.mark.parametrize("handler", [lambda: None, lambda a, b, c: None, lambda a, *, needed: None])
def test_a_handler_of_the_wrong_form_is_refused(sqlite_shop: Shop, handler: Callable[..., None]) -> None:
    sqlite_shop.hf.trigger("orders", cursor="updated_at")(handler)
    with pytest.raises(ConfigurationError, match="must take the events"):
        sqlite_shop.hf.runner("orders")


def test_several_triggers_run_in_one_process_until_stopped(shop: Shop) -> None:
    seen: dict[str, set[int]] = {"a": set(), "b": set()}

    def declare(name: str) -> None:
        @shop.hf.trigger("orders", name=name, cursor="updated_at", poll_seconds=0.05)
        def ship(changes: list[RowChange]) -> None:
            seen[name].update(order_ids(changes))

    declare("a")
    declare("b")
    running = threading.Thread(target=shop.hf.run)
    running.start()
    shop.place(range(20))
    wait_until(lambda: all(len(ids) == 20 for ids in seen.values()), "both triggers to deliver")
    shop.hf.stop()
    running.join(timeout=30)
    assert not running.is_alive()
    for name in seen:
        view = shop.hf.state.read(name)
        assert view is not None
        assert view.lease is not None
        assert view.lease.owner_id is None, "a lease was not released on stop"


def test_operations_are_told_apart_where_columns_tell(sqlite_url: str) -> None:
    shop = Shop(sqlite_url)
    with shop.engine.begin() as connection:
        connection.execute(
            text(
                "CREATE TABLE notes (id INTEGER PRIMARY KEY AUTOINCREMENT, created INTEGER, deleted_at TEXT, body TEXT)"
            )
        )
        connection.execute(
            text("INSERT INTO notes (id, created, deleted_at) VALUES (1, 1, NULL), (2, 1, NULL), (3, 3, 'now')")
        )
    events: list[RowChange] = []

    @shop.hf.trigger("notes", cursor="id", created_column="created", deleted_column="deleted_at")
    def audit(changes: list[RowChange]) -> None:
        events.extend(changes)

    drained(shop.hf.runner("notes"), lambda: len(events) >= 3)
    assert [event.op for event in events] == ["insert", "update", "delete"]
    shop.close()


def test_a_typed_time_is_put_into_the_format_of_the_column(sqlite_shop: Shop) -> None:
    """SQLite compares times as text: a 'T' or 'Z' in the wrong place would skip or repeat rows of that day."""
    sqlite_shop.hf.trigger("orders", cursor="updated_at")(order_ids)
    sqlite_shop.place([1])
    source = sqlite_shop.hf.runner("orders").source
    assert isinstance(source, SqlAlchemySource)
    for typed in ("2026-04-07T01:23:45.5Z", "2026-04-07 01:23:45.500", "2026-04-07T03:23:45.500+02:00"):
        assert source.cursor_from_text(typed, ["7"]).value == "2026-04-07 01:23:45.500"
    with pytest.raises(SourceConfigurationError, match="not a time"):
        source.cursor_from_text("yesterday", ["7"])
