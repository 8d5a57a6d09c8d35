"""Operations as orchestrations of Azure Durable Functions 1.x, declared as they are for a task hub of one's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from ...core.errors import ConfigurationError
from ...runtime.invocation import Losable
from ..context import EngineContext
from ..messages import EngineMessage
from .functions_operation import BoundFunctionsOperation, FunctionsOperation
from .protocol import Operation
from .registered_functions import Registering, checked_timeout


class DurableFunctions(Registering):
    """Orchestrators and activities that a function app hosts: pass it as ``Holdfast(durable=…)``.

    A function that takes an engine's message does so inside ``with functions.invocation(client)``.

    Args:
        poll_seconds: how often an orchestration that is waited for is looked at.
    """

    def __init__(self, *, poll_seconds: float = 1.0) -> None:
        super().__init__()
        self._poll_seconds = poll_seconds
        self._current: ContextVar[tuple[Any, asyncio.AbstractEventLoop]] = ContextVar("holdfast-functions-client")

    def operation(
        self,
        engine: str,
        orchestrator: Callable[[Any, Any], Any],
        *,
        is_singleton: bool = False,
        timeout_seconds: float | None = None,
    ) -> Operation:
        """Register an orchestrator and return the operation that runs it for each message of an engine.

        Raises:
            ConfigurationError: the orchestrator cannot be registered, or a value makes no sense.
        """
        operation = FunctionsOperation(
            self._add(self._orchestrators, orchestrator, "orchestrator"),
            is_singleton=is_singleton,
            timeout_seconds=checked_timeout(engine, timeout_seconds),
            poll_seconds=self._poll_seconds,
        )
        return _InvocationOperation(self, operation)

    def register(self, app: Any) -> None:
        """Make functions of a ``DFApp`` or ``Blueprint`` of them all. Call it once, after everything is declared.

        Raises:
            MissingDependencyError: azure-functions-durable or durabletask is not installed.
        """
        from .functions import functions_activity, functions_orchestrator

        self._is_in_use = True
        for orchestrator in self._orchestrators.values():
            app.orchestration_trigger(context_name="context")(functions_orchestrator(orchestrator))
        for activity in self._activities.values():
            app.activity_trigger(input_name="payload")(functions_activity(activity))

    @contextmanager
    def invocation(self, client: Any) -> Iterator[None]:
        """Use the ``DurableOrchestrationClient`` of an ``async def`` function for the operations inside the block."""
        token = self._current.set((client, asyncio.get_running_loop()))
        try:
            yield
        finally:
            self._current.reset(token)

    def start(self) -> None:
        """Do nothing: the Functions host runs orchestrators and activities."""

    def stop(self) -> None:
        """Do nothing: the Functions host runs orchestrators and activities."""

    def bound(self, operation: FunctionsOperation) -> BoundFunctionsOperation:
        """Return an operation with the client of the invocation that this is part of.

        Raises:
            ConfigurationError: it is part of none.
        """
        current = self._current.get(None)
        if current is None:
            raise ConfigurationError(
                f"The orchestrator '{operation.orchestrator}' needs the durable client of the function that took the "
                "message: write with functions.invocation(client): await hf.engines.handle_async(…)."
            )
        return BoundFunctionsOperation(operation, *current)


class _InvocationOperation:
    """An operation that uses the client of whichever invocation it is run in."""

    def __init__(self, functions: DurableFunctions, operation: FunctionsOperation) -> None:
        self._functions = functions
        self._operation = operation

    def run(self, context: EngineContext, message: EngineMessage, lease: Losable) -> object:
        """Run the orchestration; call it on a thread beside the invocation's event loop.

        Raises:
            ConfigurationError: it is part of no invocation.
            AlreadyRunning: the instance is busy with something else.
            LostLeaseError: the message was lost; the orchestration goes on.
            OperationFailed: the orchestration failed during this delivery, or ran too long.
            Unavailable: the Functions host does not answer.
        """
        return self._functions.bound(self._operation).run(context, message, lease)
