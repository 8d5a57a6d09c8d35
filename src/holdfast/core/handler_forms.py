"""What kind of function a handler is, whatever it was wrapped in: one must know before calling it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def is_async(handler: Callable[..., Any]) -> bool:
    """Return whether calling it gives something to await."""
    return any(inspect.iscoroutinefunction(form) for form in _forms(handler))


def is_generator(handler: Callable[..., Any]) -> bool:
    """Return whether it has a ``yield``: then calling it runs nothing, and its work would count as done."""
    return any(inspect.isgeneratorfunction(form) or inspect.isasyncgenfunction(form) for form in _forms(handler))


def _forms(handler: Callable[..., Any]) -> tuple[Any, ...]:
    return handler, inspect.unwrap(handler), getattr(handler, "__call__", None)  # noqa: B004 - the method itself
