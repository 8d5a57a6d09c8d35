"""Handler signatures: what the Functions worker may see, and whether a name a decorator was given is there."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from types import NoneType
from typing import Any

from ..core.errors import ConfigurationError

Resolver = Callable[..., dict[str, object]]
_Named = dict[str, Any]
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
RESERVED = frozenset({"timer", "req", "context", "msg", "input", "output"})


def check_argument(function: Callable[..., Any], argument: str, kind: str) -> None:
    """Check that the handler has the parameter a decorator is to fill.

    Raises:
        ConfigurationError: it has not, or cannot be given it by name, or the name belongs to the Functions host, or the
            host's decorator came first.
    """
    if not inspect.isroutine(function) and hasattr(function, "build"):  # what @app.route and its like return
        raise ConfigurationError(
            f"{kind}: the host's decorator (@app.…) is applied before it. Write it the other way round: @app.… on top, "
            f"@db.{kind} below it, closest to the function."
        )
    name = getattr(function, "__name__", "handler")
    parameters = visible_signature(function).parameters
    if argument not in parameters:
        raise ConfigurationError(
            f"{kind}: '{name}' has no parameter '{argument}' to fill. It has: {', '.join(parameters) or 'none'}."
        )
    if parameters[argument].kind not in _BY_NAME:
        raise ConfigurationError(
            f"{kind}: '{parameters[argument]}' of '{name}' cannot be filled by name. Make '{argument}' a plain "
            "parameter, without * or /."
        )
    by_place = [name for name, value in parameters.items() if value.kind is value.POSITIONAL_ONLY]
    if by_place:
        raise ConfigurationError(
            f"{kind}: '{by_place[0]}' of '{name}' can be given by position only, but the host gives arguments by name. "
            "Remove the / from its parameters."
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
    """Give the wrapper the handler's signature without the parameters we fill: the worker binds what it sees.

    Their annotations go too: the worker evaluates all there are, and those of hidden parameters may name types that are
    imported for the type checker only.
    """
    signature = visible_signature(function)
    kept = [parameter for name, parameter in signature.parameters.items() if name not in injected]
    wrapper.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]  # inspect reads it
    annotations: dict[str, Any] = getattr(wrapper, "__annotations__", {})
    wrapper.__annotations__ = {name: value for name, value in annotations.items() if name not in injected}


def named(function: Callable[..., Any], injected: Collection[str]) -> Callable[[tuple[Any, ...], _Named], _Named]:
    """Return what turns a call's arguments into keyword arguments.

    Those given by position are taken in the order of the signature the host sees, the one without the injected.
    """
    seen = visible_signature(function)
    seen = seen.replace(parameters=[value for name, value in seen.parameters.items() if name not in injected])
    spread = next((name for name, value in seen.parameters.items() if value.kind is value.VAR_KEYWORD), None)

    def arguments(args: tuple[Any, ...], kwargs: _Named) -> _Named:
        if not args:  # as the Functions worker calls
            return kwargs
        bound = seen.bind_partial(*args, **kwargs).arguments
        return bound | bound.pop(spread, {}) if spread else bound

    return arguments


def resolving(
    wanted: dict[str, object] | Resolver | None, function: Callable[..., Any], injected: str, label: str
) -> Callable[[_Named], dict[str, object]]:
    """Return what gives the values to read with, from the arguments of a call.

    Raises:
        ConfigurationError: ``wanted`` is neither a dict nor a callable that the handler's arguments can fill.
    """
    if not callable(wanted):
        if not isinstance(wanted, (dict, NoneType)):
            raise ConfigurationError(
                f"input {label}: pass a dict, or a callable that returns one, not {type(wanted).__name__}."
            )
        fixed = dict(wanted or {})
        return lambda given: fixed
    names = resolver_parameters(wanted, function, injected, label)
    parameters = visible_signature(function).parameters
    defaults = {
        name: parameters[name].default for name in names if parameters[name].default is not inspect.Signature.empty
    }

    def resolve(given: _Named) -> dict[str, object]:
        found = wanted(**{name: value for name, value in (defaults | given).items() if name in names})
        if not isinstance(found, dict):
            raise ConfigurationError(f"input {label}: the callable must return a dict, not {type(found).__name__}.")
        return found

    return resolve


def resolver_parameters(resolver: Resolver, function: Callable[..., Any], injected: str, label: str) -> list[str]:
    """Return the names a resolver takes from the handler's arguments.

    Raises:
        ConfigurationError: it takes something the handler has not, or takes it in a way that cannot be filled by name.
    """
    available = [name for name in visible_signature(function).parameters if name != injected]
    shown = ", ".join(available) or "none"
    if inspect.iscoroutinefunction(resolver):
        raise ConfigurationError(f"input {label}: the callable must be a plain function, not an async one.")
    for parameter in _parameters_of(resolver, label):
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise ConfigurationError(
                f"input {label}: the callable must take named parameters only, not '{parameter}'. Name those of the "
                f"handler it needs: {shown}."
            )
        if parameter.name not in available:
            raise ConfigurationError(
                f"input {label}: the callable asks for '{parameter.name}', which handler "
                f"'{getattr(function, '__name__', 'handler')}' has not. It has: {shown}."
            )
    return [parameter.name for parameter in _parameters_of(resolver, label)]


def _parameters_of(resolver: Resolver, label: str) -> Collection[inspect.Parameter]:
    try:
        return inspect.signature(resolver).parameters.values()
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"input {label}: the parameters of {resolver!r} cannot be seen. Use a lambda."
        ) from error
