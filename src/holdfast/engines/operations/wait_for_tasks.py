"""Waiting for several tasks, the same way on every backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .generator_bridge import NothingToWaitFor


def when_all(context: Any, tasks: Sequence[Any]) -> Any:
    """Return a task that ends when each of ``tasks`` has ended: with their results in order, or the first failure.

    It waits for the others when one fails. No tasks at all have ended already, with no results.
    """
    own = _own(context, "when_all")
    if own is not None:
        return own(tasks)
    if not tasks:
        return NothingToWaitFor()
    from durabletask import task

    return task.when_all(list(tasks))


def when_any(context: Any, tasks: Sequence[Any]) -> Any:
    """Return a task that ends with the first of ``tasks`` that ends, well or not. The others go on.

    Raises:
        ValueError: there are no tasks, so none would ever end.
    """
    if not tasks:
        raise ValueError("when_any of no tasks would never end.")
    own = _own(context, "when_any")
    if own is not None:
        return own(tasks)
    from durabletask import task

    return task.when_any(list(tasks))


def _own(context: Any, name: str) -> Any:
    """Return how the context itself does it: Azure Functions' tasks are not durabletask's."""
    return getattr(context, name, None)
