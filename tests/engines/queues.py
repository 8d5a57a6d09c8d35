"""Queues of engines under test, all behind one protocol."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from azure.storage.queue import QueueClient

from holdfast.core.config import DbConfig
from holdfast.core.engine import EngineProvider
from holdfast.core.migrations import migrate
from holdfast.engines.queues.embedded import EmbeddedQueue
from holdfast.engines.queues.storage import StorageQueue
from holdfast.jobs.schema import MIGRATIONS as JOB_MIGRATIONS
from holdfast.jobs.stores.choose import job_store
from holdfast.records.schema import MIGRATIONS as RECORD_MIGRATIONS
from tests.components.azurite import AzuriteServer


@contextmanager
def embedded_queue(url: str, visibility_seconds: float = 30.0) -> Iterator[EmbeddedQueue]:
    provider = EngineProvider()
    engine = provider.get_engine(DbConfig(connection_url=url))
    try:
        migrate(engine, (*RECORD_MIGRATIONS, *JOB_MIGRATIONS))
        yield EmbeddedQueue(job_store(engine), "hmac-rotation-queue", visibility_seconds)
    finally:
        provider.dispose_all()


@contextmanager
def storage_queue(azurite: AzuriteServer) -> Iterator[StorageQueue]:
    name = f"q{uuid.uuid4().hex}"
    with QueueClient.from_connection_string(azurite.connection_string, name) as client:
        client.create_queue()
        yield StorageQueue(client)
