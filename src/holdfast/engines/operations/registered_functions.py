"""The orchestrators and activities of an application, by the names that a hub knows them by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ...core.errors import ConfigurationError
from ...core.handler_forms import is_async

Function = TypeVar("Function", bound=Callable[..., Any])


class Registering:
    """Functions that are registered. Once they are in use none can be added: a hub would not hear of it."""

    def __init__(self) -> None:
        self._activities: dict[str, Callable[..., Any]] = {}
        self._orchestrators: dict[str, Callable[..., Any]] = {}
        self._is_in_use = False

    def activity(self, function: Function) -> Function:
        """Register an activity, a ``def`` of context and input: a step with side effects. It may run more than once.

        Raises:
            ConfigurationError: it has no name of its own, another has its name, it is async, or it comes too late.
        """
        self._add(self._activities, function, "activity")
        return function

    def orchestrator(self, function: Function) -> Function:
        """Register an orchestrator, a ``def`` of context and input, for ``ctx.call_sub_orchestrator``.

        Raises:
            ConfigurationError: it has no name of its own, another has its name, it is async, or it comes too late.
        """
        self._add(self._orchestrators, function, "orchestrator")
        return function

    def _add(self, known: dict[str, Callable[..., Any]], function: Callable[..., Any], kind: str) -> str:
        name = getattr(function, "__name__", "<lambda>")
        if name == "<lambda>":
            raise ConfigurationError(f"The {kind} {function!r:.80} has no name; the hub knows it by that. Use def.")
        if is_async(function):
            raise ConfigurationError(f"The {kind} '{name}' is async def; the worker calls def only.")
        if known.get(name, function) != function:
            raise ConfigurationError(f"Already another {kind} is named '{name}'; the hub knows it by that. Rename one.")
        if self._is_in_use and name not in known:
            raise ConfigurationError(f"The {kind} '{name}' comes too late: the others are in use. Register it before.")
        known[name] = function
        return name


def checked_timeout(engine: str, seconds: float | None) -> float | None:
    """Return how long an engine's orchestration may run, None for as long as it likes.

    Raises:
        ConfigurationError: it would never run.
    """
    if seconds is not None and seconds <= 0:
        raise ConfigurationError(f"Engine '{engine}': timeout_seconds={seconds!r} must be more than 0.")
    return seconds
