"""Issue 13, line 11: listings say what succeeded, who works, and what runs next; nothing runs that nobody runs."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from holdfast import EngineProvider, Holdfast
from holdfast.engines.azure import AzureStorage
from holdfast.jobs.announcement import Listed
from holdfast.outbox.message import Message
from tests.cli.desk import Desk
from tests.clocks import SteppedClock
from tests.components.azurite import AzuriteServer
from tests.components.processes import wait_until
from tests.jobs.queues import ANNE
from tests.trigger.test_worker import running


def quiet(messages: list[Message]) -> None:
    """Do nothing."""


@pytest.fixture(
    params=[
        pytest.param("postgres_url", marks=pytest.mark.component("postgres18")),
        pytest.param("mariadb_url", marks=pytest.mark.component("mariadb")),
        "sqlite_url",
    ]
)
def desk(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Desk]:
    """An application with an empty queue, on every database."""
    provider = EngineProvider()
    opened = Desk(request.getfixturevalue(request.param), provider, monkeypatch, capsys)
    opened.hf.migrate()
    yield opened
    provider.dispose_all()


def test_13_11_jobs_stats_counts_successes(desk: Desk) -> None:
    for _ in range(3):
        desk.finish()
    desk.queue.add()
    [email] = desk("jobs", "stats", "--json").json
    assert (email["topic"], email["ready"], email["succeeded"]) == ("email", 1, 3)
    header, row = [
        line.split() for line in desk("jobs", "stats").out.splitlines() if "email" in line or "topic" in line
    ]
    assert row[header.index("succeeded")] == "3"
    assert "done" not in header


def test_13_11_a_declared_topic_is_counted_when_everything_has_succeeded(desk: Desk) -> None:
    @desk.hf.job(topic="sms")
    def send(to: str) -> None:
        """Send."""

    assert desk("jobs", "stats", "--json").json == []
    desk.finish(topic="sms")
    [sms] = desk("jobs", "stats", "--json").json
    assert (sms["topic"], sms["succeeded"], sms["running"]) == ("sms", 1, 0)
    [stats] = desk.hf.jobs.stats()
    assert stats.succeeded == 1


def test_13_11_a_processor_runs_only_while_somebody_runs_it(desk: Desk) -> None:
    desk.hf.processor("totals")(quiet)
    desk.hf.processors.register()
    processor = desk.hf.processors.get("totals")

    def status() -> str:
        [item] = desk("processor", "list", "--json").json["processors"]
        return str(item["status"])

    assert status() == "not running"
    with desk.hf.processors.runner(processor, processor.partition_ids[0]).leased():
        assert status() == "running"
    assert status() == "not running"
    assert "not running" in desk("processor", "list").out
    desk("processor", "stop", "totals")
    assert status() == "stopped"


def test_13_11_live_workers_are_listed(desk: Desk) -> None:
    assert "No worker of jobs or engines is alive" in desk("workers").out
    store = desk.hf.jobs.store
    store.announce(ANNE, {"email": ["send"], "sms": None})
    [worker] = desk("workers", "--json").json
    assert (worker["id"], worker["host"]) == (ANNE, socket.gethostname())
    assert worker["operations"] == {"email": ["send"], "sms": None}
    shown = desk("workers").out
    assert "email: send, sms: anything" in shown
    store.withdraw(ANNE)
    assert desk("workers", "--json").json == []


def test_13_11_a_worker_that_was_not_seen_for_long_is_not_alive(desk: Desk) -> None:
    queue = desk.queue
    queue.step(-200)
    queue.store.announce(ANNE, {"email": None})
    assert desk("workers", "--json").json == []


@pytest.mark.component("azurite")
def test_13_11_a_worker_of_queues_in_azure_is_listed_while_it_runs(
    azurite: AzuriteServer, sqlite_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    account, provider = AzureStorage.from_connection_string(azurite.connection_string), EngineProvider()
    hf = Holdfast(sqlite_url, engine_provider=provider, engine_queues=account)
    hf.engine("hmac", queue="listed-keys", operation="rotate")(lambda context, message: None)
    hf.migrate()
    desk = Desk(sqlite_url, provider, monkeypatch, capsys)
    with running(hf):
        [worker] = wait_until(lambda: desk("workers", "--json").json, "the worker")
        assert worker["operations"] == {"queue listed-keys": ["rotate"]}
        assert "queue listed-keys: rotate" in desk("workers").out
    assert desk("workers", "--json").json == []
    account.close()
    provider.dispose_all()


def test_13_11_a_worker_that_cannot_be_listed_works_and_says_so_once(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    stop, clock = threading.Event(), SteppedClock()
    listed = Listed(desk.queue.store, {"queue keys": ["rotate"]}, stop, clock)
    with desk.queue.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE holdfast_workers RENAME TO gone")
    with caplog.at_level(logging.WARNING):
        assert [listed._tick() > 0, listed._tick() > 0] == [True, True]
    assert caplog.text.count("This worker is not listed by 'holdfast workers'") == 1


def test_13_11_periodic_jobs_and_their_next_run_are_listed(desk: Desk) -> None:
    assert "No periodic job is declared" in desk("jobs", "periodic").out

    @desk.hf.job(topic="reports")
    def report() -> None:
        """Report."""

    desk.hf.periodic(report, "0 3 * * *", timezone="Europe/Amsterdam", name="nightly")
    [nightly] = desk("jobs", "periodic", "--json").json
    assert (nightly["name"], nightly["topic"], nightly["operation"]) == ("nightly", "reports", "report")
    assert (nightly["cron"], nightly["timezone"], nightly["last_slot"]) == ("0 3 * * *", "Europe/Amsterdam", None)
    assert datetime.fromisoformat(nightly["next_slot"]) > datetime.now(UTC)
    assert "no worker has seen it yet" in desk("jobs", "periodic").out


def test_13_11_a_slot_that_was_missed_is_due(desk: Desk) -> None:
    @desk.hf.job(topic="reports")
    def report() -> None:
        """Report."""

    desk.hf.periodic(report, "0 3 * * *", name="nightly")
    store = desk.hf.jobs.store
    with store.transaction() as connection:
        store.start_periodic(connection, "nightly", datetime(2026, 1, 1, tzinfo=UTC))
    [nightly] = desk("jobs", "periodic", "--json").json
    assert nightly["last_slot"] == "2026-01-01T00:00:00Z"
    assert datetime.fromisoformat(nightly["next_slot"]) <= datetime.now(UTC)


_MOMENTS = {
    "postgresql": ("timestamptz NOT NULL DEFAULT now()", "timestamp NOT NULL DEFAULT now()"),
    "mysql": (
        "timestamp(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)",
        "datetime(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6)",
    ),
    "sqlite": (
        "TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now'))",
        "TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now', 'localtime'))",
    ),
}


@pytest.mark.parametrize("has_zone", [True, False])
def test_13_11_trigger_list_has_lag(desk: Desk, has_zone: bool) -> None:
    engine = desk.queue.engine
    moment = _MOMENTS[engine.dialect.name][0 if has_zone else 1]
    with engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE TABLE orders (id INTEGER PRIMARY KEY, updated_at {moment})")
        connection.exec_driver_sql("CREATE INDEX orders_updated ON orders (updated_at, id)")

    @desk.hf.trigger("orders", cursor="updated_at", key="id")
    def ship(changes: list[object]) -> None:
        """Ship."""

    def lag() -> float | None:
        [item] = desk("trigger", "list", "--json").json
        found: float | None = item["lag_seconds"]
        return found

    assert lag() is None
    desk.hf.runner("orders").tick()
    assert lag() == 0
    with engine.begin() as connection:
        connection.exec_driver_sql("INSERT INTO orders VALUES (1, '2020-01-01 00:00:00')")
    assert (lag() or 0) > 24 * 3600
    assert "lag" in desk("trigger", "list").out
