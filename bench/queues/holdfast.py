"""Holdfast's worker with its history on, as an application would use it."""

import threading

import psycopg

from holdfast import Holdfast
from holdfast.jobs.definition import JobDefinition
from holdfast.jobs.settings import WorkerSettings

SETTINGS = WorkerSettings(concurrency=10, ahead=1000)
_EMPTY = "SELECT NOT EXISTS (SELECT FROM holdfast_jobs)"


def application(dsn: str) -> tuple[Holdfast, JobDefinition]:
    app = Holdfast(dsn)

    @app.job(topic="bench")
    def noop(n: int) -> None: ...

    return app, noop


def prepare(dsn: str) -> None:
    app, _ = application(dsn)
    app.migrate()


def enqueue(dsn: str, count: int) -> None:
    _, noop = application(dsn)
    noop.enqueue_many([{"n": number} for number in range(count)])


def work(dsn: str, name: str) -> int:
    app, _ = application(dsn)
    stop = threading.Event()
    worker = app.jobs.worker(stop, SETTINGS)
    thread = threading.Thread(target=worker.run)
    thread.start()
    with psycopg.connect(dsn, autocommit=True) as connection:
        while connection.execute(_EMPTY).fetchone() != (True,):
            stop.wait(0.02)
    stop.set()  # the process ends once the worker has
    return 0
