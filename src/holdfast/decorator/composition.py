"""Which decorators go together, decided when they are applied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..core.errors import ConfigurationError

_MARK = "_db_decorators"
_FORBIDDEN = {
    frozenset({"input", "inject_reader"}): "Both read: use input for one lookup, or inject_reader for everything.",
    frozenset({"output", "inject_writer"}): "Both write: use output for one write, or inject_writer for everything.",
}


def check_composition(function: Callable[..., Any], kind: str) -> None:
    """Refuse a decorator that does not go with those already applied.

    Raises:
        ConfigurationError: it was applied before, or does the same as another; the message says what to use instead.
    """
    applied = _applied(function)
    name = getattr(function, "__name__", "handler")
    if kind in applied:
        raise ConfigurationError(
            f"Decorator '{kind}' is applied twice to '{name}'. Apply it once; use inject_reader or inject_writer for "
            "more than one table."
        )
    for other in sorted(applied):
        advice = _FORBIDDEN.get(frozenset({kind, other}))
        if advice is not None:
            raise ConfigurationError(f"Decorators '{kind}' and '{other}' cannot be combined on '{name}'. {advice}")


def mark(function: Callable[..., Any], kind: str) -> None:
    """Remember that a decorator was applied."""
    setattr(function, _MARK, _applied(function) | {kind})


def _applied(function: Callable[..., Any]) -> frozenset[str]:
    found: object = getattr(function, _MARK, None)
    return found if isinstance(found, frozenset) else frozenset()
