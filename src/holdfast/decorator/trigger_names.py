"""Names of triggers on one checkpoint store: two under the same name would share a checkpoint, each missing rows."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from ..core.errors import ConfigurationError
from ..lease.store import StateStore
from ..trigger.sources.protocol import SourceAdapter

_lock = threading.Lock()
_sources: WeakKeyDictionary[StateStore, dict[str, Callable[[], SourceAdapter]]] = WeakKeyDictionary()
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


@dataclass(frozen=True, slots=True)
class BoundTrigger:
    """A trigger that ``db.trigger`` has declared in this process, and where its state is kept."""

    name: str
    store: StateStore
    find_source: Callable[[], SourceAdapter]


def remember_source(store: object, name: str, find_source: Callable[[], SourceAdapter]) -> None:
    """Keep what finds a trigger's source, so that commands can work on a poller that no ``Holdfast`` declares.

    It must not refer to the store: what is remembered goes with the store.
    """
    if isinstance(store, StateStore):
        with _lock:
            _sources.setdefault(store, {})[name] = find_source


def bound_triggers() -> list[BoundTrigger]:
    """Return the triggers that ``db.trigger`` has declared in this process; there may be two of one name."""
    with _lock:
        return [BoundTrigger(name, store, find) for store, found in _sources.items() for name, find in found.items()]


def _place_of(function: Callable[..., Any]) -> object:
    code = getattr(function, "__code__", None)
    if code is None:
        return type(function)
    return code.co_filename, code.co_firstlineno
