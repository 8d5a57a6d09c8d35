"""Operations of a single step."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from holdfast import ConfigurationError, LostLeaseError
from holdfast.durable import InProcess
from tests.components.processes import wait_until
from tests.engines.operations.hubs import Deliveries, Lease, deliver, message


def test_the_handler_gets_context_and_message_and_its_answer_is_the_output() -> None:
    def handle(context: Any, asked: Any) -> list[str]:
        return [context.correlation_id, asked.payload["host"]]

    assert deliver(InProcess(handle), message("c-9", payload={"host": "a"})) == ["c-9", "a"]


def test_an_async_handler_is_awaited() -> None:
    async def handle(context: Any, asked: Any) -> str:
        await asyncio.sleep(0)
        return str(asked.correlation_id)

    assert deliver(InProcess(handle), message("c-9")) == "c-9"


def test_the_handlers_own_error_comes_through() -> None:
    def handle(context: Any, asked: Any) -> None:
        raise KeyError("no key")

    with pytest.raises(KeyError, match="no key"):
        deliver(InProcess(handle), message())


def test_an_async_handler_is_cancelled_when_the_message_is_lost() -> None:
    begun = threading.Event()

    async def handle(context: Any, asked: Any) -> None:
        begun.set()
        await asyncio.Event().wait()

    deliveries, lease = Deliveries(), Lease()
    running = deliveries.begin(InProcess(handle), message(), lease)
    wait_until(begun.is_set, "the handler to begin")
    lease.lose()
    with pytest.raises(LostLeaseError):
        running.result(30)
    deliveries.close()


def test_an_orchestrator_is_no_handler() -> None:
    def orchestrate(context: Any, asked: Any) -> Any:
        yield

    with pytest.raises(ConfigurationError, match="generator"):
        InProcess(orchestrate)
