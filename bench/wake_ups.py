"""How long a job waits for its start when a worker is idle, against a bare NOTIFY followed by a bare claim."""

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg

from bench.queues import holdfast, raw
from holdfast import Holdfast
from tests.components.postgres import PostgresServer

_ADD = "INSERT INTO raw_jobs (topic, payload) VALUES ('bench', '{}')"


def latencies(server: PostgresServer, count: int) -> dict[str, dict[str, float]]:
    """Return the percentiles of both in milliseconds, taken in turns."""
    ours: list[float] = []
    bare: list[float] = []
    with _holdfast(server) as wake_ours, _bare(server) as wake_bare:
        for _ in range(5):
            wake_ours()
            wake_bare()
        for _ in range(count):
            ours.append(wake_ours())
            bare.append(wake_bare())
    return {"Holdfast": _percentiles(ours), "bare NOTIFY and claim": _percentiles(bare)}


def _percentiles(seconds: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(seconds, n=100)
    return {"p50": statistics.median(seconds) * 1000, "p99": cuts[98] * 1000}


@contextmanager
def _holdfast(server: PostgresServer) -> Iterator[Callable[[], float]]:
    dsn = server.dsn(server.create_database())
    holdfast.prepare(dsn)
    started = _Starts()
    app = Holdfast(dsn)

    @app.job(topic="bench")
    def note() -> None:
        started.note()

    stop = threading.Event()
    thread = threading.Thread(target=app.jobs.worker(stop, holdfast.SETTINGS).run)
    thread.start()
    try:
        yield lambda: started.after(note.enqueue)
    finally:
        stop.set()
        thread.join()


@contextmanager
def _bare(server: PostgresServer) -> Iterator[Callable[[], float]]:
    dsn = server.dsn(server.create_database())
    raw.prepare(dsn)
    started = _Starts()
    stop = threading.Event()
    is_listening = threading.Event()

    def listen() -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("LISTEN raw_jobs")
            is_listening.set()
            while not stop.is_set():
                heard = list(connection.notifies(timeout=0.5, stop_after=1))
                if heard and connection.execute(raw.CLAIM, (raw.BATCH, "w")).fetchall():
                    started.note()

    thread = threading.Thread(target=listen)
    thread.start()
    is_listening.wait()

    def add() -> None:
        adding.execute(_ADD)
        adding.execute("NOTIFY raw_jobs")
        adding.commit()

    with psycopg.connect(dsn) as adding:
        try:
            yield lambda: started.after(add)
        finally:
            stop.set()
            thread.join()


class _Starts:
    """Notes when a job starts, and tells how long after its enqueue that was."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._at = 0.0

    def note(self) -> None:
        self._at = time.perf_counter()
        self._event.set()

    def after(self, enqueue: Callable[[], object]) -> float:
        self._event.clear()
        begun = time.perf_counter()
        enqueue()
        if not self._event.wait(30):
            raise TimeoutError("a job did not start within 30 s")
        return self._at - begun
