"""Names of triggers on one checkpoint store: two under the same name would share a checkpoint, each missing rows."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from ..core.errors import ConfigurationError

_lock = threading.Lock()
_taken: WeakKeyDictionary[object, dict[str, tuple[str, object]]] = WeakKeyDictionary()


def claim_name(store: object, name: str, function: Callable[..., Any]) -> None:
    """Take a name on a store for a function; the same function may take it again, as when its module is reloaded.

    Stores that cannot be referred to weakly are not watched.

    Raises:
        ConfigurationError: another function has it.
    """
    innermost = inspect.unwrap(function)
    shown = str(getattr(innermost, "__name__", "handler"))
    with _lock:
        try:
            names = _taken.setdefault(store, {})
        except TypeError:
            return
        holder, place = names.setdefault(name, (shown, _place_of(innermost)))
    if place != _place_of(innermost):
        raise ConfigurationError(
            f"trigger: '{holder}' and '{shown}' are both called '{name}' on one checkpoint store, so they would share "
            "a checkpoint and each miss what the other got. Give one of them another name=…"
        )


def _place_of(function: Callable[..., Any]) -> object:
    code = getattr(function, "__code__", None)
    if code is None:
        return type(function)
    return code.co_filename, code.co_firstlineno
