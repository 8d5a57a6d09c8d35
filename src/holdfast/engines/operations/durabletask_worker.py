"""Orchestrators as durabletask's worker gets them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator
from functools import wraps
from typing import Any

from .generator_bridge import driven
from .instances import continued_input


class HostedContext:
    """durabletask's context. An orchestration that continues as new still tells whom it works for."""

    def __init__(self, context: Any, given: object) -> None:
        self._context = context
        self._given = given

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def continue_as_new(self, new_input: Any, **options: Any) -> None:
        """Continue with a new input and a history that begins again.

        Raises:
            ConfigurationError: the new input is no object.
        """
        self._context.continue_as_new(continued_input(self._given, new_input), **options)


def hosted_orchestrator(orchestrator: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return the orchestrator for durabletask's worker."""

    @wraps(orchestrator)
    def run(context: Any, given: Any) -> Any:
        steps = orchestrator(HostedContext(context, given), given)
        return driven(steps, _yielded) if inspect.isgenerator(steps) else steps

    return run


def _yielded(task: Any) -> Generator[Any, Any, Any]:
    return (yield task)
