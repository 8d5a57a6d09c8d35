"""Engines' operations through the real client of azure-functions-durable, against a stand-in for its host."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import pytest
from azure.durable_functions import DurableOrchestrationClient
from azure.durable_functions.models.utils import http_utils

from holdfast import ConfigurationError, Conflict, LostLeaseError, Unavailable
from holdfast.durable import (
    BoundFunctionsOperation,
    FunctionsOperation,
    OperationFailed,
    OperationTimedOut,
    functions_activity,
)
from tests.components.ports import free_port
from tests.components.processes import wait_until
from tests.engines.operations.functions_host import FunctionsServer, Hub, functions_server, handle_of
from tests.engines.operations.hubs import Gate, Lease, context_of, message

Result = TypeVar("Result")


class App:
    """A function app with one orchestrator, and an invocation of its queue function at a time."""

    def __init__(self) -> None:
        self.work: Callable[[Any], Any] = lambda payload: payload
        self.executions: list[Any] = []
        self.hub = Hub({"renew": handle_of(self.renew)}, {"step": functions_activity(self.step)})
        self.server: FunctionsServer

    def step(self, ctx: Any, payload: Any) -> Any:
        self.executions.append(payload)
        return self.work(payload)

    def renew(self, ctx: Any, given: Any) -> Any:
        done = yield ctx.call_activity("step", input=given["payload"])
        return {"done": done, "for": given["correlationId"]}

    def operation(self, **settings: Any) -> FunctionsOperation:
        return FunctionsOperation(self.renew, poll_seconds=0.01, **settings)

    def deliver(self, asked: Any, lease: Lease | None = None, **settings: Any) -> object:
        """Do what one invocation does: bind the client of its own, and await the operation."""

        async def invocation(bound: BoundFunctionsOperation) -> object:
            return await bound.run_async(context_of(asked), asked, lease)

        return self.invoke(invocation, **settings)

    def invoke(self, invocation: Callable[[BoundFunctionsOperation], Awaitable[Result]], **settings: Any) -> Result:
        async def run() -> Result:
            client = DurableOrchestrationClient(self.server.binding)
            try:
                return await invocation(self.operation(**settings).bound(client))
            finally:
                await http_utils._close_session()

        return asyncio.run(run())


@pytest.fixture
def app() -> Iterator[App]:
    made = App()
    with functions_server(made.hub) as made.server:
        yield made


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.open()


def test_the_output_is_told_when_the_orchestration_has_ended(app: App) -> None:
    assert app.deliver(message("c-1", payload=7)) == {"done": 7, "for": "c-1"}
    assert app.server.starts == ["tls-renew-c-1"]


def test_a_message_that_comes_again_gets_the_output_without_another_execution(app: App) -> None:
    for _ in range(2):
        assert app.deliver(message("c-1", payload=7)) == {"done": 7, "for": "c-1"}
    assert app.executions == [7]


def test_a_message_that_is_lost_is_not_waited_for_and_the_next_delivery_attaches(app: App, gate: Gate) -> None:
    app.work = gate.pass_through
    lease = Lease()

    async def invocation(bound: BoundFunctionsOperation) -> object:
        asked = message("c-1", payload=7)
        running = asyncio.create_task(bound.run_async(context_of(asked), asked, lease))
        await asyncio.to_thread(wait_until, lambda: gate.begun, "the activity to begin")
        lease.lose()
        return await running

    with pytest.raises(LostLeaseError, match="'tls-renew-c-1' goes on"):
        app.invoke(invocation)
    gate.open()
    assert app.deliver(message("c-1", payload=7)) == {"done": 7, "for": "c-1"}
    assert app.executions == [7]


def test_a_failure_is_told_and_the_next_delivery_starts_anew(app: App) -> None:
    def fail(payload: Any) -> None:
        raise ValueError("no key")

    app.work = fail
    with pytest.raises(OperationFailed, match=r"'tls-renew-c-1' failed: .*no key"):
        app.deliver(message("c-1", payload=7))
    app.work = lambda payload: "mended"
    assert app.deliver(message("c-1", payload=7)) == {"done": "mended", "for": "c-1"}


def test_a_singleton_is_busy_with_one_thing_at_a_time(app: App, gate: Gate) -> None:
    app.work = gate.pass_through

    async def invocation(bound: BoundFunctionsOperation) -> object:
        first = message("c-1", payload=1, instance_id="a")
        running = asyncio.create_task(bound.run_async(context_of(first), first))
        await asyncio.to_thread(wait_until, lambda: gate.begun, "the activity to begin")
        second = message("c-2", payload=2, instance_id="a")
        with pytest.raises(Conflict, match=r"'tls-a' is at work for correlation id 'c-1'"):
            await bound.run_async(context_of(second), second)
        gate.open()
        await running
        return await bound.run_async(context_of(second), second)

    assert app.invoke(invocation, is_singleton=True) == {"done": 2, "for": "c-2"}


def test_what_runs_too_long_is_terminated(app: App, gate: Gate) -> None:
    app.work = gate.pass_through
    with pytest.raises(OperationTimedOut, match=r"ran longer than its 0\.05 s\. It was terminated\."):
        app.deliver(message("c-1", payload=7), timeout_seconds=0.05)
    assert app.hub.instances["tls-renew-c-1"].status == "Terminated"


def test_a_start_whose_answer_is_lost_is_not_repeated(app: App) -> None:
    app.server.lost_answers = 1
    assert app.deliver(message("c-1", payload=7)) == {"done": 7, "for": "c-1"}
    assert app.executions == [7]
    assert app.server.starts == ["tls-renew-c-1"]


def test_an_orchestrator_that_is_not_there_is_told(app: App) -> None:
    async def invocation(bound: BoundFunctionsOperation) -> object:
        asked = message("c-1")
        other = FunctionsOperation("revoke", poll_seconds=0.01).bound(bound._client)
        return await other.run_async(context_of(asked), asked)

    with pytest.raises(Unavailable, match=r"did not start 'tls-renew-c-1' .*'revoke' doesn't exist"):
        app.invoke(invocation)


def test_a_host_that_is_away_is_told(app: App) -> None:
    async def invocation(bound: BoundFunctionsOperation) -> object:
        binding = app.server.binding.replace(f":{app.server.server_port}/", f":{free_port()}/")
        asked = message("c-1")
        away = app.operation().bound(DurableOrchestrationClient(binding))
        return await away.run_async(context_of(asked), asked)

    with pytest.raises(Unavailable, match=r"The Functions host did not show 'tls-renew-c-1'"):
        app.invoke(invocation)


def test_a_flow_on_a_thread_uses_the_invocations_loop(app: App, gate: Gate) -> None:
    app.work = gate.pass_through

    async def invocation(bound: BoundFunctionsOperation) -> object:
        asked = message("c-1", payload=7)
        running = asyncio.create_task(asyncio.to_thread(bound.run, context_of(asked), asked, Lease()))
        await asyncio.to_thread(wait_until, lambda: gate.begun, "the activity to begin")
        gate.open()
        return await running

    assert app.invoke(invocation) == {"done": 7, "for": "c-1"}


def test_a_flow_on_a_thread_stops_waiting_when_its_message_is_lost(app: App, gate: Gate) -> None:
    app.work = gate.pass_through
    lease = Lease()

    async def invocation(bound: BoundFunctionsOperation) -> object:
        asked = message("c-1", payload=7)
        running = asyncio.create_task(asyncio.to_thread(bound.run, context_of(asked), asked, lease))
        await asyncio.to_thread(wait_until, lambda: gate.begun, "the activity to begin")
        lease.lose()
        return await running

    with pytest.raises(LostLeaseError):
        app.invoke(invocation)


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="must be more than 0"):
        FunctionsOperation("renew", poll_seconds=0)
    with pytest.raises(ConfigurationError, match="must be more than 0"):
        FunctionsOperation("renew", timeout_seconds=0)
