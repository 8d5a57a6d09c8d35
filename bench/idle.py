"""Connections and transactions each second of a process with all four workloads: while it idles, while it works."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from bench.report import Section, Target
from bench.scale import Scale
from holdfast import Holdfast, Message, RowChange
from holdfast.database.budget import MAX_CONNECTIONS
from tests.components.postgres import PostgresServer

_CONNECTIONS = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend' "
    "AND pid <> pg_backend_pid()"
)
_TRANSACTIONS = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
_LOOK_SECONDS = 0.1


def measure(server: PostgresServer, scale: Scale) -> Section:
    """Run an application that has nothing to do, then give it something all the while."""
    seconds = 20.0 if scale.enforces_targets else 2.0
    name = server.create_database()
    hf = _application(server.url(name))
    with psycopg.connect(server.dsn(name), autocommit=True) as watch, _running(hf):
        time.sleep(3.0)  # everything has started, and rests for as long as it ever does
        idle = _watched(watch, seconds)
        with _asking(hf):
            busy = _watched(watch, seconds)
    hf._provider.dispose_all()
    server.terminate_sessions(name)
    server.drop_database(name)
    figures = {"idle": idle, "busy": busy}
    lines = [
        f"  {what:<6}{most:>4} connections {rate:>10,.1f} transactions/s" for what, (most, rate) in figures.items()
    ]
    targets = [
        Target(f"connections of a process that is {what}", found[0], at_most=MAX_CONNECTIONS)
        for what, found in figures.items()
    ]
    return Section("A process with all four workloads", lines, figures, targets)


def _watched(watch: psycopg.Connection, seconds: float) -> tuple[int, float]:
    """Return the most connections that were seen, and how many transactions there were each second.

    That is what the server counts: a statement by itself is one, as most of ours are.
    """
    started, before, most, looks = time.perf_counter(), _one(watch, _TRANSACTIONS), 0, 0
    while time.perf_counter() - started < seconds:
        most, looks = max(most, _one(watch, _CONNECTIONS)), looks + 1
        time.sleep(_LOOK_SECONDS)
    watch.execute("SELECT pg_stat_force_next_flush()")
    passed = time.perf_counter() - started
    return most, max(0.0, (_one(watch, _TRANSACTIONS) - before - looks) / passed)


def _one(watch: psycopg.Connection, sql: str) -> int:
    row = watch.execute(sql).fetchone()
    assert row is not None
    return int(row[0])


def _application(url: str) -> Holdfast:
    hf = Holdfast(url)

    @hf.trigger("orders", cursor="updated_at", poll_seconds=1.0)
    def seen(changes: list[RowChange], context: Any) -> None:
        context.transaction.exec_driver_sql("SELECT 1")

    @hf.job("bench")
    def work(context: Any, number: int) -> None:
        context.transaction.exec_driver_sql("SELECT 1")

    @hf.processor("totals")
    def totals(messages: list[Message], context: Any) -> None:
        context.transaction.exec_driver_sql("SELECT 1")

    @hf.engine("billing", operation="bill")
    def bill(context: Any, message: Any) -> None: ...

    hf.migrate()
    with hf.database.begin() as connection:
        connection.exec_driver_sql(
            "CREATE TABLE orders (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, "
            "updated_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp())"
        )
        connection.exec_driver_sql("CREATE INDEX ON orders (updated_at, id)")
    return hf


@contextmanager
def _running(hf: Holdfast) -> Iterator[None]:
    thread = threading.Thread(target=lambda: hf.run(handle_signals=False))
    thread.start()
    try:
        yield
    finally:
        hf.stop()
        thread.join()


@contextmanager
def _asking(hf: Holdfast) -> Iterator[None]:
    """Insert orders, jobs and messages all the while, on the application's own connections."""
    stop = threading.Event()
    job = next(each for each in hf.jobs.definitions if each.topic == "bench")

    def ask() -> None:
        while not stop.wait(0.01):
            job.enqueue_many({"number": number} for number in range(10))
            with hf.database.begin() as connection:
                connection.exec_driver_sql("INSERT INTO orders DEFAULT VALUES")
                hf.outbox.append(connection, "Placed", {})

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
