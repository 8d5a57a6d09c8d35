"""Engines' operations inside Azure Durable Functions 1.x: started and waited for through its client.

The client belongs to one invocation of a function, so an operation is declared once and bound to the client of each.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from ...core.clock import Clock, SystemClock
from ...core.errors import ConfigurationError, LostLeaseError, Unavailable
from ...runtime.invocation import HandlerInvoker, Losable
from ..context import EngineContext
from ..messages import EngineMessage
from .delivery import Delivery, Done, Start, Terminate, Wait
from .instances import Instance, Owner, Phase, input_of, instance_id

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_PHASES = {
    "Completed": Phase.COMPLETED,
    "Failed": Phase.FAILED,
    "Canceled": Phase.TERMINATED,
    "Terminated": Phase.TERMINATED,
}  # everything else is under way


class FunctionsOperation:
    """An orchestrator of a function app, as the operation of an engine.

    Args:
        orchestrator: the orchestrator function, or its name in the function app.
        is_singleton: one instance for each of the messages' instance ids, instead of one for each operation and
            correlation id.
        timeout_seconds: how long the orchestration may run; None for as long as it likes.
        poll_seconds: how often it is looked at.
    """

    def __init__(
        self,
        orchestrator: Callable[..., Any] | str,
        *,
        is_singleton: bool = False,
        timeout_seconds: float | None = None,
        poll_seconds: float = 1.0,
        clock: Clock | None = None,
    ) -> None:
        if poll_seconds <= 0 or (timeout_seconds is not None and timeout_seconds <= 0):
            raise ConfigurationError("FunctionsOperation: poll_seconds and timeout_seconds must be more than 0.")
        self.orchestrator = orchestrator if isinstance(orchestrator, str) else orchestrator.__name__
        self.is_singleton = is_singleton
        self.timeout_seconds = timeout_seconds
        self.poll_seconds = poll_seconds
        self.clock: Clock = clock or SystemClock()

    def bound(self, client: Any) -> BoundFunctionsOperation:
        """Return the operation for one invocation, with its ``DurableOrchestrationClient``. Needs a running loop."""
        return BoundFunctionsOperation(self, client, asyncio.get_running_loop())


class BoundFunctionsOperation:
    """The operation of one invocation: ``await run_async(…)`` on its event loop, ``run(…)`` on any other thread."""

    def __init__(self, operation: FunctionsOperation, client: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._operation = operation
        self._client = client
        self._loop = loop

    def run(self, context: EngineContext, message: EngineMessage, lease: Losable) -> object:
        """Do what ``run_async`` does, from a thread beside the invocation's event loop.

        Raises:
            AlreadyRunning: the instance is busy with something else.
            LostLeaseError: the message was lost; the orchestration goes on.
            OperationFailed: the orchestration failed during this delivery, or ran too long.
            Unavailable: the Functions host does not answer.
        """

        async def run(messages: list[Any], context: Any) -> object:
            return await self.run_async(context, messages[0], lease)

        return HandlerInvoker(run, self._loop).invoke([message], context, lease)

    async def run_async(self, context: EngineContext, message: EngineMessage, lease: Losable | None = None) -> object:
        """Start the message's orchestration, or go on with it, and return its output when it has ended.

        Raises:
            AlreadyRunning: the instance is busy with something else.
            LostLeaseError: the message was lost; the orchestration goes on.
            OperationFailed: the orchestration failed during this delivery, or ran too long.
            Unavailable: the Functions host does not answer.
        """
        operation = self._operation
        name = instance_id(message, is_singleton=operation.is_singleton)
        given = input_of(message, context)
        delivery = Delivery(
            name,
            Owner.of(message),
            timeout_seconds=operation.timeout_seconds,
            poll_seconds=operation.poll_seconds,
            clock=operation.clock,
        )
        while True:
            if lease is not None and lease.lost.is_set():
                raise LostLeaseError(f"Message {message.message_id} was lost; the orchestration '{name}' goes on.")
            try:
                done = await self._advance(delivery, name, given)
            except Unavailable as error:
                await asyncio.sleep(delivery.unreachable(error).seconds)
                continue
            if done is not None:
                return done.output

    async def _advance(self, delivery: Delivery, name: str, given: dict[str, Any]) -> Done | None:
        """Take one step; return the end once it is reached."""
        match delivery.next(await self._look(name)):
            case Done() as done:
                return done
            case Wait(seconds):
                await asyncio.sleep(seconds)
            case Terminate(reason):
                async with _translated(f"did not terminate '{name}'"):
                    await self._client.terminate(name, reason)
            case Start():
                await self._start(delivery, name, given)
        return None

    async def _start(self, delivery: Delivery, name: str, given: dict[str, Any]) -> None:
        try:
            async with _translated(f"did not start '{name}'"):
                await self._client.start_new(self._operation.orchestrator, name, given)
        except Unavailable as error:
            delivery.unanswered(error)
            return
        delivery.started()

    async def _look(self, name: str) -> Instance | None:
        async with _translated(f"did not show '{name}'"):
            status = await self._client.get_status(name, show_input=True)
        if status is None or status.runtime_status is None:
            return None
        phase = _PHASES.get(status.runtime_status.value, Phase.RUNNING)
        output = status.output
        return Instance(
            phase=phase,
            owner=Owner.in_input(_read(status.input_)),
            created_at=status.created_time,
            output=output,
            error="" if output is None else str(output),
        )


@asynccontextmanager
async def _translated(fact: str) -> AsyncIterator[None]:
    try:
        yield
    except Exception as error:  # the client raises Exception itself, and aiohttp's errors
        raise Unavailable(
            f"The Functions host {fact} ({type(error).__name__}: {error}). Look at the host's log; the message comes "
            "again."
        ) from error


def _read(given: object) -> object:
    """Return an input as JSON: the host shows it as a text that holds JSON."""
    if not isinstance(given, str):
        return given
    try:
        return json.loads(given)
    except ValueError:
        return given
