"""A task hub in this process, spoken to over real gRPC, and what a delivery brings along."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from durabletask.testing import InMemoryOrchestrationBackend

from holdfast.durable import DurableTasks, Operation
from holdfast.engines.context import EngineContext
from holdfast.engines.messages import EngineMessage
from holdfast.runtime.invocation import Losable
from tests.components.ports import free_port


class Lease:
    """A lease that a test can take away."""

    ttl_seconds = 30.0

    def __init__(self) -> None:
        self.lost = threading.Event()
        self._callbacks: list[Callable[[], None]] = []

    def when_lost(self, callback: Callable[[], None]) -> Callable[[], None]:
        self._callbacks.append(callback)
        if self.lost.is_set():
            callback()
        return lambda: self._callbacks.remove(callback)

    def lose(self) -> None:
        self.lost.set()
        for callback in list(self._callbacks):
            callback()


def message(correlation_id: str = "c-1", **fields: Any) -> EngineMessage:
    given = {"message_id": "m-1", "engine": "tls", "operation": "renew", "payload": {}, **fields}
    return EngineMessage(correlation_id=correlation_id, **given)


def context_of(asked: EngineMessage) -> EngineContext:
    return EngineContext(
        engine=asked.engine,
        operation=asked.operation,
        correlation_id=asked.correlation_id,
        message_id=asked.message_id,
        instance_id=asked.instance_id,
    )


def deliver(operation: Operation, asked: EngineMessage, lease: Losable | None = None) -> object:
    """Give the operation one delivery of a message and wait for its end."""
    return operation.run(context_of(asked), asked, lease or Lease())


class _Backend(InMemoryOrchestrationBackend):
    """Counts the ends of activities it was told: it does not tell apart executions under one id, as a real hub does."""

    ends = 0

    def CompleteActivityTask(self, request: Any, context: Any) -> Any:  # noqa: N802 - the name of the call
        answer = super().CompleteActivityTask(request, context)
        self.ends += 1
        return answer


class Hub:
    """The in-memory backend of durabletask on a free port."""

    def __init__(self) -> None:
        self.port = free_port()
        self.backend = _Backend(port=self.port)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def status(self, instance_id: str) -> str:
        with DurableTasks(self.address) as tasks:
            found = tasks.hub.look(instance_id)
        return "none" if found is None else str(found.phase)


@contextmanager
def running_hub() -> Iterator[Hub]:
    hub = Hub()
    hub.backend.start()
    try:
        yield hub
    finally:
        hub.backend.stop()


class Deliveries:
    """Deliveries beside each other, each on a thread of its own."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(max_workers=8)

    def begin(self, operation: Operation, asked: EngineMessage, lease: Losable | None = None) -> Future[object]:
        return self._threads.submit(deliver, operation, asked, lease)

    def close(self) -> None:
        self._threads.shutdown()


class Gate:
    """An activity's counterpart: tells that the activity has begun, and lets it go on."""

    def __init__(self) -> None:
        self.begun: list[Any] = []
        self._open = threading.Event()

    def pass_through(self, value: Any) -> Any:
        self.begun.append(value)
        assert self._open.wait(60), "nobody opened the gate"
        return value

    def open(self) -> None:
        self._open.set()
