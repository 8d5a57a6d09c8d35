"""Procrastinate with ten jobs at once."""

import asyncio
import logging

import procrastinate
from procrastinate.types import JSONValue

CONCURRENCY = 10


def application(dsn: str) -> procrastinate.App:
    logging.getLogger("procrastinate").setLevel(logging.ERROR)
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=dsn))

    @app.task(name="noop", queue="bench")
    async def noop(n: int) -> None: ...

    return app


def prepare(dsn: str) -> None:
    asyncio.run(_prepare(dsn))


async def _prepare(dsn: str) -> None:
    app = application(dsn)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


def enqueue(dsn: str, count: int) -> None:
    asyncio.run(_enqueue(dsn, count))


async def _enqueue(dsn: str, count: int) -> None:
    app = application(dsn)
    async with app.open_async():
        jobs: list[dict[str, JSONValue]] = [{"n": number} for number in range(count)]
        await app.tasks["noop"].batch_defer_async(*jobs)


def work(dsn: str, name: str) -> int:
    asyncio.run(_work(dsn))
    return 0


async def _work(dsn: str) -> None:
    app = application(dsn)
    async with app.open_async():
        await app.run_worker_async(queues=["bench"], wait=False, concurrency=CONCURRENCY, install_signal_handlers=False)
