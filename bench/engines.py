"""Engines in the database beside jobs and beside the engines of an earlier commit: messages per second, and waits."""

import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg
from sqlalchemy import text

from bench.earlier import COMMIT, MISSING, NOW, earlier_source, take_turn
from bench.queues.holdfast import SETTINGS
from bench.report import Section, Target
from bench.scale import Scale
from holdfast import Holdfast
from holdfast.jobs.worker import JobWorker
from tests.components.postgres import PostgresServer

JOBS, JOBS_TRANSACTION = "jobs", "jobs, context.transaction"
ENGINE, ENGINE_TRANSACTION = "engine", "engine, context.transaction"
_EMPTY = "SELECT NOT EXISTS (SELECT FROM holdfast_jobs)"
_EFFECT = text("INSERT INTO effects VALUES (:n)")


def measure(server: PostgresServer, scale: Scale) -> Section:
    """Race the kinds of work in turns."""
    count, rounds, wakes = (5_000, 3, 100) if scale.enforces_targets else (200, 1, 10)
    kinds = (JOBS, JOBS_TRANSACTION, ENGINE, ENGINE_TRANSACTION)
    rates: dict[str, list[float]] = {kind: [] for kind in kinds}
    for number in range(rounds):
        for kind in kinds if number % 2 == 0 else reversed(kinds):
            rates[kind].append(_per_second(server, kind, count))
    best = {kind: max(found) for kind, found in rates.items()}
    waits = _start_milliseconds(server, wakes)
    lines = [f"done per second ({count:,} each, concurrency {SETTINGS.concurrency}, no-op or one INSERT)"]
    lines += [f"  {kind:<28}{rate:>10,.0f}" for kind, rate in best.items()]
    lines += [f"milliseconds from send to start, median of {wakes} one by one"]
    lines += [f"  {kind:<28}{found:>10.2f}" for kind, found in waits.items()]
    targets = [
        Target(
            "engine messages with context.transaction against such jobs",
            best[ENGINE_TRANSACTION] / best[JOBS_TRANSACTION],
            at_least=0.5,
        ),
        Target("engine messages without it against jobs with it", best[ENGINE] / best[JOBS_TRANSACTION], at_least=1.0),
        Target("send to start against jobs", waits[ENGINE] / waits[JOBS], at_most=2.0),
    ]
    turns = _against_earlier(server, scale)
    if turns:
        before, now = statistics.median(turns["before"]), statistics.median(turns["now"])
        lines += [f"messages done per second by processes of {COMMIT} and of this checkout, medians of turns"]
        lines += [f"  {'before':<28}{before:>10,.0f}", f"  {'now':<28}{now:>10,.0f}"]
        targets.append(Target(f"engine messages against those of {COMMIT}", now / before, at_least=10.0))
    else:
        lines += [f"skipped: {MISSING}"]
    figures = {"per second": rates, "milliseconds to start": waits, "per second in turns": turns}
    return Section("Engines", lines, figures, targets)


def _against_earlier(server: PostgresServer, scale: Scale) -> dict[str, list[float]]:
    """Return messages per second of the earlier commit's engines and of these, nothing where the clone has none."""
    turns, few, many = (7, 300, 5_000) if scale.enforces_targets else (1, 30, 100)  # each for some seconds
    with earlier_source() as earlier:
        if earlier is None:
            return {}
        rates: dict[str, list[float]] = {"before": [], "now": []}
        for _ in range(turns):
            rates["before"].append(few / take_turn(server, earlier, "engine", few).seconds)
            rates["now"].append(many / take_turn(server, NOW, "engine", many).seconds)
    return rates


def _application(dsn: str, noted: Callable[[], None] = lambda: None) -> Holdfast:
    app = Holdfast(dsn)

    @app.job(topic="bench", name=JOBS)
    def plain(n: int) -> None:
        noted()

    @app.job(topic="bench-transaction", name=JOBS_TRANSACTION)
    def transactional(context: Any, n: int) -> None:
        context.transaction.execute(_EFFECT, {"n": n})

    @app.engine("plain", concurrency=SETTINGS.concurrency)
    def engine(context: Any, message: Any) -> None:
        noted()

    @app.engine("transactional", concurrency=SETTINGS.concurrency)
    def engine_transaction(context: Any, message: Any) -> None:
        context.transaction.execute(_EFFECT, {"n": message.payload})

    app.migrate()
    return app


def _send(app: Holdfast, kind: str, count: int) -> None:
    if kind in (JOBS, JOBS_TRANSACTION):
        [job] = [item for item in app.jobs.definitions if item.operation == kind]
        job.enqueue_many([{"n": number} for number in range(count)])
        return
    with app.jobs.store.transaction() as connection:
        for number in range(count):
            app.engines.send("plain" if kind == ENGINE else "transactional", number, connection=connection)


def _worker(app: Holdfast, stop: threading.Event) -> JobWorker:
    return app.jobs.worker(stop, SETTINGS, others=app.engines.handlers())


def _per_second(server: PostgresServer, kind: str, count: int) -> float:
    dsn = server.dsn(server.create_database())
    app, stop = _application(dsn), threading.Event()
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE effects (n integer)")
        _send(app, kind, count)
        connection.execute("ANALYZE")
        thread = threading.Thread(target=_worker(app, stop).run)
        started = time.perf_counter()
        thread.start()
        while connection.execute(_EMPTY).fetchone() != (True,):
            stop.wait(0.01)
        seconds = time.perf_counter() - started
    stop.set()
    thread.join()
    return count / seconds


def _start_milliseconds(server: PostgresServer, count: int) -> dict[str, float]:
    begun = threading.Event()
    at = [0.0]

    def note() -> None:
        at[0] = time.perf_counter()
        begun.set()

    app, stop = _application(server.dsn(server.create_database()), note), threading.Event()
    thread = threading.Thread(target=_worker(app, stop).run)
    thread.start()
    [job] = [item for item in app.jobs.definitions if item.operation == JOBS]
    waits: dict[str, list[float]] = {JOBS: [], ENGINE: []}
    for _ in range(count):
        for kind, send in ((JOBS, lambda: job.enqueue(n=1)), (ENGINE, lambda: app.engines.send("plain", 1))):
            begun.clear()
            sent = time.perf_counter()
            send()
            assert begun.wait(30)
            waits[kind].append((at[0] - sent) * 1000)
    stop.set()
    thread.join()
    return {kind: statistics.median(found) for kind, found in waits.items()}
