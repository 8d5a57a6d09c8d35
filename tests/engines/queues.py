"""Queues of engines under test, all behind one protocol."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import requests
from azure.core.pipeline.transport import RequestsTransport, RequestsTransportResponse
from azure.storage.queue import QueueClient

from holdfast.core.config import DbConfig
from holdfast.database.migrations import migrate
from holdfast.database.pools import EngineProvider
from holdfast.engines.queues.embedded import EmbeddedQueue
from holdfast.engines.queues.storage import StorageQueue
from holdfast.jobs.schema import MIGRATIONS as JOB_MIGRATIONS
from holdfast.jobs.store import job_store
from holdfast.records.schema import MIGRATIONS as RECORD_MIGRATIONS
from tests.components.azurite import AzuriteServer
from tests.engines.driving import ClaimedQueue, TestQueue


@dataclass
class Stepped:
    """How far the database's time, as the statements are told it, was stepped."""

    seconds: float = 0.0


_stepped: WeakKeyDictionary[ClaimedQueue, Stepped] = WeakKeyDictionary()


def let_time_pass(queue: TestQueue, seconds: float) -> None:
    """Step the time of an embedded queue; Azure's goes by itself."""
    if isinstance(queue, ClaimedQueue):
        _stepped[queue].seconds += seconds


@contextmanager
def embedded_queue(url: str, visibility_seconds: float = 30.0) -> Iterator[ClaimedQueue]:
    provider = EngineProvider()
    engine = provider.get_engine(DbConfig(connection_url=url))
    try:
        migrate(engine, (*RECORD_MIGRATIONS, *JOB_MIGRATIONS))
        stepped = Stepped()
        store = job_store(engine, ahead_seconds=lambda: stepped.seconds)
        queue = ClaimedQueue(EmbeddedQueue(store, "hmac-rotation-queue", visibility_seconds))
        _stepped[queue] = stepped
        yield queue
    finally:
        provider.dispose_all()


TIMED_OUT = b"<Error><Code>OperationTimedOut</Code><Message>The operation could not be completed.</Message></Error>"


class LateAnswers(RequestsTransport):  # type: ignore[misc]  # the SDK imports it lazily, without a type
    """Sends what it is told to, and once ``is_late`` answers every write as the service does that gave up waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.is_late = False

    def send(self, request: Any, **options: Any) -> Any:
        response: Any = super().send(request, **options)
        if not self.is_late or request.method not in ("POST", "PUT", "DELETE"):
            return response
        response.internal_response.close()
        answer = requests.Response()
        answer.status_code, answer.reason = 500, "Internal Server Error"
        answer.headers.update({"x-ms-error-code": "OperationTimedOut", "Content-Type": "application/xml"})
        answer._content = TIMED_OUT
        return RequestsTransportResponse(request, answer)


@contextmanager
def storage_queue(azurite: AzuriteServer, **options: Any) -> Iterator[StorageQueue]:
    name = f"q{uuid.uuid4().hex}"
    with QueueClient.from_connection_string(azurite.connection_string, name, **options) as client:
        client.create_queue()
        yield StorageQueue(client)


def free_what_the_dead_held(queue: TestQueue) -> None:
    """Do what a worker does now and then; Azure does it by itself."""
    if isinstance(queue, ClaimedQueue):
        queue._store.reap()
