"""Operations of a single step."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from holdfast import AlreadyRunning, ConfigurationError, HandlerError, LostLeaseError
from holdfast.durable import InProcess
from holdfast.engines.operations.protocol import HubUnavailable
from tests.components.processes import wait_until
from tests.engines.operations.hubs import Deliveries, Lease, context_of, deliver, message


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


def test_a_handler_may_take_the_message_alone() -> None:
    assert InProcess(lambda asked: asked.payload).run(context_of(message(payload=7)), message(payload=7), Lease()) == 7


@pytest.mark.parametrize("handler", [lambda: None, lambda one, two, three: None])
def test_a_handler_that_takes_something_else_is_refused(handler: Any) -> None:
    with pytest.raises(ConfigurationError, match="context and the message"):
        InProcess(handler)


@pytest.mark.parametrize("error", [LostLeaseError("of mine"), AlreadyRunning("of mine"), HubUnavailable("of mine")])
def test_what_a_handler_raises_is_its_own_failure(error: Exception) -> None:
    def handle(context: Any, asked: Any) -> None:
        raise error

    with pytest.raises(HandlerError, match="of mine"):
        InProcess(handle).run(context_of(message()), message(), Lease())


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_an_async_handler_that_wants_to_end_the_process_fails_alone(error: BaseException) -> None:
    async def leave(context: Any, asked: Any) -> None:
        raise error

    async def answer(context: Any, asked: Any) -> int:
        return 7

    with pytest.raises(HandlerError, match=type(error).__name__):
        deliver(InProcess(leave), message())
    assert deliver(InProcess(answer), message()) == 7, "the loop goes on"


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()])
def test_a_handler_that_wants_to_end_the_process_fails(error: BaseException) -> None:
    def leave(context: Any, asked: Any) -> None:
        raise error

    with pytest.raises(HandlerError, match=type(error).__name__):
        deliver(InProcess(leave), message())
