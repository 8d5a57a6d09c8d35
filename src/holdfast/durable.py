"""Durable operations: orchestrations that outlive the worker that started them. See docs/durable-operations.md.

Nothing here imports an SDK before it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .engines.operations.durable_functions import DurableFunctions
from .engines.operations.durable_tasks import DurableTasks
from .engines.operations.functions_operation import BoundFunctionsOperation, FunctionsOperation
from .engines.operations.in_process import InProcess
from .engines.operations.protocol import Operation, OperationFailed, OperationTimedOut
from .engines.operations.wait_for_tasks import when_all, when_any

if TYPE_CHECKING:
    from durabletask.task import RetryPolicy, TaskFailedError

    from .engines.operations.functions import functions_activity, functions_orchestrator

__all__ = [
    # engines
    "DurableTasks",
    "DurableFunctions",
    "FunctionsOperation",
    "BoundFunctionsOperation",
    "InProcess",
    "Operation",
    "OperationFailed",
    "OperationTimedOut",
    # orchestrators
    "when_all",
    "when_any",
    "RetryPolicy",
    "TaskFailedError",
    # Azure Functions
    "functions_orchestrator",
    "functions_activity",
]


if not TYPE_CHECKING:  # to a type checker a misspelt name would be Any

    def __getattr__(name: str) -> object:
        if name in ("functions_orchestrator", "functions_activity"):
            from .engines.operations import functions

            return getattr(functions, name)
        if name in ("RetryPolicy", "TaskFailedError"):
            from .engines.operations import durabletask_names

            return getattr(durabletask_names, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
