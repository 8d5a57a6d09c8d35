"""Running the generator of an orchestrator inside another: what it yields is looked at on the way."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

Waiting = Callable[[Any], Generator[Any, Any, Any]]


class NothingToWaitFor:
    """What ``when_all`` of no tasks is: it has ended with no results."""


def driven(steps: Generator[Any, Any, Any], wait: Waiting) -> Generator[Any, Any, Any]:
    """Run ``steps`` to its end and return its result; ``wait`` is what to do with each thing it yields."""
    answer: Any = None
    error: Exception | None = None
    while True:
        try:
            task = steps.send(answer) if error is None else steps.throw(error)
        except StopIteration as end:
            return end.value
        answer = error = None
        try:
            answer = [] if isinstance(task, NothingToWaitFor) else (yield from wait(task))
        except Exception as failed:
            error = failed
