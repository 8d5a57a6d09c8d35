"""Orchestrators and activities written for durabletask, as functions of azure-functions-durable 1.x."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator
from typing import Any

from ...core.errors import MissingDependencyError
from .generator_bridge import driven

try:
    from azure.durable_functions import RetryOptions  # noqa: F401 - asked for now, so that its absence shows now

    from .functions_context import FunctionsContext
    from .functions_tasks import FunctionsTask
except ImportError as error:
    raise MissingDependencyError(
        'Orchestrators in Azure Functions need azure-functions-durable and durabletask: run "pip install '
        "'holdfast[azure,durable]' 'azure-functions-durable<2'\"."
    ) from error


def functions_orchestrator(orchestrator: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
    """Return ``def orchestrator(ctx, input)`` as what ``@app.orchestration_trigger(context_name="context")`` takes."""

    def main(context: Any) -> Any:
        adapted = FunctionsContext(context)
        steps = orchestrator(adapted, adapted.given)
        return driven(steps, _wait) if inspect.isgenerator(steps) else steps

    return _named_like(orchestrator, main)


def functions_activity(activity: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
    """Return ``def activity(ctx, input)`` as what ``@app.activity_trigger(input_name="payload")`` takes."""

    def main(payload: Any) -> Any:
        return activity(FunctionsActivityContext(), payload)

    return _named_like(activity, main)


class FunctionsActivityContext:
    """The context of an activity. Functions does not say which orchestration it belongs to."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"The activity uses its context's '{name}', which Azure Functions does not tell. Pass it in the input."
        )


def _wait(task: Any) -> Generator[Any, Any, Any]:
    if not isinstance(task, FunctionsTask):
        raise TypeError(
            f"The orchestrator yielded a {type(task).__name__}, not a task of its context. Wait for several tasks with "
            "holdfast.durable.when_all(ctx, tasks) and when_any(ctx, tasks)."
        )
    return (yield from task.wait())


def _named_like(function: Callable[..., Any], main: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Name what Functions registers. ``functools.wraps`` would show it the parameters of the function inside."""
    main.__name__ = function.__name__
    main.__doc__ = function.__doc__
    return main
