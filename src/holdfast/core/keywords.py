"""Keyword arguments in groups: a function takes ``**options`` that a TypedDict types, and works with frozen values.

The dataclasses have the defaults and the checks. ``help`` and ``inspect.signature`` show every keyword by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from functools import lru_cache
from inspect import Parameter, Signature, signature
from typing import Any, TypeVar

_Group = TypeVar("_Group")
_Function = TypeVar("_Function", bound=Callable[..., Any])


def takes(*groups: type, **defaults: object) -> Callable[[_Function], _Function]:
    """Show the fields of dataclasses as the keyword arguments of a function that takes them as ``**options``.

    ``defaults`` are those that are others here, and name keywords that are in no group.
    """

    def shown(function: _Function) -> _Function:
        given = signature(function)
        parameters = {name: each for name, each in given.parameters.items() if each.kind is not Parameter.VAR_KEYWORD}
        found = {field.name: _parameter(field) for group in groups for field in fields(group)}
        found |= {name: _renamed(found.get(name), name, default) for name, default in defaults.items()}
        parameters |= {name: each for name, each in found.items() if name not in parameters}
        function.__signature__ = Signature(  # type: ignore[attr-defined]  # every function may have one
            list(parameters.values()), return_annotation=given.return_annotation
        )
        return function

    return shown


def _parameter(field: Field[Any]) -> Parameter:
    default = field.default if field.default_factory is MISSING else field.default_factory()
    return Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=field.type)


def _renamed(known: Parameter | None, name: str, default: object) -> Parameter:
    if known is not None:
        return known.replace(default=default)
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default)


def require_known(function: str, options: Mapping[str, object], *groups: type, others: tuple[str, ...] = ()) -> None:
    """Refuse a keyword that no group has, in the words of Python itself.

    Raises:
        TypeError: there is one.
    """
    known = _names(*groups)
    for name in options:
        if name not in known and name not in others:
            raise TypeError(f"{function}() got an unexpected keyword argument '{name}'")


def picked(group: type[_Group], options: Mapping[str, object]) -> _Group:
    """Return a value of what was given for one group, the group's defaults for what was not."""
    names = _names(group)  # type: ignore[arg-type]  # every class has a hash
    return group(**{name: value for name, value in options.items() if name in names})


def options_of(group: type, value: object) -> dict[str, Any]:
    """Return the fields of a group as keywords, with what a value of it, or of more than it, has in them."""
    return {name: getattr(value, name) for name in _names(group)}


@lru_cache
def _names(*groups: type) -> tuple[str, ...]:
    return tuple(field.name for group in groups for field in fields(group))
