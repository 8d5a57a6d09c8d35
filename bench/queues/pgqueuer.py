"""PgQueuer with its fastest driver and batches of 100."""

import asyncio
import json
from datetime import timedelta

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries
from pgqueuer.types import QueueExecutionMode

BATCH = 100


def prepare(dsn: str) -> None:
    asyncio.run(_prepare(dsn))


async def _prepare(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    await Queries(AsyncpgDriver(connection)).install()
    await connection.close()


def enqueue(dsn: str, count: int) -> None:
    asyncio.run(_enqueue(dsn, count))


async def _enqueue(dsn: str, count: int) -> None:
    connection = await asyncpg.connect(dsn)
    payloads: list[bytes | None] = [json.dumps({"n": number}).encode() for number in range(count)]
    await Queries(AsyncpgDriver(connection)).enqueue(["bench"] * count, payloads, [0] * count)
    await connection.close()


def work(dsn: str, name: str) -> int:
    return asyncio.run(_work(dsn))


async def _work(dsn: str) -> int:
    connection = await asyncpg.connect(dsn)
    queue = PgQueuer(AsyncpgDriver(connection))

    @queue.entrypoint("bench")
    async def noop(job: Job) -> None:
        json.loads(job.payload or b"null")

    await queue.run(dequeue_timeout=timedelta(seconds=1), batch_size=BATCH, mode=QueueExecutionMode.drain)
    await connection.close()
    return 0
