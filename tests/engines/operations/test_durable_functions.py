"""Engines declared for Azure Durable Functions: the client of each invocation, and the functions of the app."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import azure.durable_functions as df
import pytest
from azure.durable_functions.models.utils import http_utils

from holdfast import ConfigurationError
from holdfast.durable import DurableFunctions
from tests.engines.operations.functions_host import FunctionsServer, Hub, functions_server, handle_of
from tests.engines.operations.hubs import deliver, message


def renew(ctx: Any, given: Any) -> Any:
    return (yield ctx.call_activity("where"))


def hub_at(place: str) -> Hub:
    return Hub({"renew": handle_of(renew)}, {"where": lambda payload: place})


@pytest.fixture
def servers() -> Iterator[list[FunctionsServer]]:
    with functions_server(hub_at("here")) as here, functions_server(hub_at("there")) as there:
        yield [here, there]


def test_each_invocation_uses_its_own_client(servers: list[FunctionsServer]) -> None:
    functions = DurableFunctions(poll_seconds=0.01)
    operation = functions.operation("tls", renew)

    async def invocation(server: FunctionsServer) -> object:
        with functions.invocation(df.DurableOrchestrationClient(server.binding)):
            return await asyncio.to_thread(deliver, operation, message("c-1"))

    async def both() -> list[object]:
        try:
            return await asyncio.gather(*map(invocation, servers))
        finally:
            await http_utils._close_session()

    assert asyncio.run(both()) == ["here", "there"]


def test_outside_of_an_invocation_the_sentence_says_what_to_write() -> None:
    operation = DurableFunctions().operation("tls", renew)
    with pytest.raises(ConfigurationError, match=r"'renew' needs the durable client .*functions\.invocation\(client\)"):
        deliver(operation, message())


def test_orchestrators_and_activities_become_functions_of_the_app() -> None:
    functions, app = DurableFunctions(), df.DFApp()

    @functions.activity
    def where(ctx: Any, payload: Any) -> None: ...

    @functions.orchestrator
    def inner(ctx: Any, given: Any) -> None: ...

    functions.operation("tls", renew)
    functions.register(app)
    triggers = {item.get_function_name(): item.get_trigger().type for item in app.get_functions()}
    assert triggers == {"renew": "orchestrationTrigger", "inner": "orchestrationTrigger", "where": "activityTrigger"}
    functions.start()
    functions.stop()
    with pytest.raises(ConfigurationError, match="'handle_of' comes too late"):
        functions.activity(handle_of)
    with pytest.raises(ConfigurationError, match="timeout_seconds=0 must be more than 0"):
        functions.operation("tls", renew, timeout_seconds=0)
