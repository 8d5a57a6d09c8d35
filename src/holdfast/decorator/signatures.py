"""Handler signatures: what the Functions worker may see, and whether a name a decorator was given is there."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ..core.errors import ConfigurationError

RESERVED = frozenset({"timer", "req", "context", "msg", "input", "output"})


def check_argument(function: Callable[..., Any], argument: str, kind: str) -> None:
    """Check that the handler has the parameter a decorator is to fill.

    Raises:
        ConfigurationError: it has not, or the name belongs to the Functions host.
    """
    name = getattr(function, "__name__", "handler")
    parameters = visible_signature(function).parameters
    if argument not in parameters:
        raise ConfigurationError(
            f"{kind}: '{name}' has no parameter '{argument}' to fill. It has: {', '.join(parameters) or 'none'}."
        )
    if argument in RESERVED:
        raise ConfigurationError(
            f"{kind}: the parameter name '{argument}' belongs to the Functions host. Choose another; taken are "
            f"{', '.join(sorted(RESERVED))}."
        )


def visible_signature(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature as a decorator below left it, not that of the innermost function."""
    return inspect.signature(function, follow_wrapped=False)


def hide(wrapper: Callable[..., Any], function: Callable[..., Any], injected: Collection[str]) -> None:
    """Give the wrapper the handler's signature without the parameters we fill: the worker binds what it sees."""
    signature = visible_signature(function)
    kept = [parameter for name, parameter in signature.parameters.items() if name not in injected]
    wrapper.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]  # inspect reads it


Resolver = Callable[..., dict[str, object]]


def resolver_parameters(resolver: Resolver, function: Callable[..., Any], injected: str, label: str) -> list[str]:
    """Return the names a resolver takes from the handler's arguments.

    Raises:
        ConfigurationError: it takes something the handler has not, or takes it in a way that cannot be filled by name.
    """
    available = [name for name in visible_signature(function).parameters if name != injected]
    names = []
    for parameter in inspect.signature(resolver).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise ConfigurationError(
                f"input {label}: the callable must take named parameters only, not '{parameter}'. Name those of the "
                f"handler it needs: {', '.join(available) or 'none'}."
            )
        if parameter.name not in available:
            raise ConfigurationError(
                f"input {label}: the callable asks for '{parameter.name}', which handler "
                f"'{getattr(function, '__name__', 'handler')}' has not. It has: {', '.join(available) or 'none'}."
            )
        names.append(parameter.name)
    return names


def resolve(resolver: Resolver, names: Collection[str], arguments: Mapping[str, Any]) -> dict[str, object]:
    """Call a resolver with the handler's own arguments."""
    return resolver(**{name: arguments[name] for name in names if name in arguments})
