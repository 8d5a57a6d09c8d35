"""Calls that an async handler forgot to await: nothing of them was done, yet its events would count as handled."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

from ..core.errors import HandlerError

_Call = Coroutine[Any, Any, Any]


class TrackedCalls:
    """Base of what handlers call and await: it knows which calls of its async methods have not ended yet."""

    def __init__(self) -> None:
        self._unfinished: dict[object, tuple[str, _Call]] = {}

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name.startswith("_") or not inspect.iscoroutinefunction(found):
            return found
        return functools.wraps(found)(functools.partial(self._track, name, found))

    def _track(self, name: str, method: Callable[..., _Call], *args: Any, **kwargs: Any) -> _Call:
        place = object()

        async def run() -> Any:
            try:
                return await method(*args, **kwargs)
            finally:
                self._unfinished.pop(place, None)

        call = run()
        self._unfinished[place] = (name, call)
        return call

    def require_awaited(self, argument: str) -> None:
        """Check, once the handler has returned, that it left no call behind.

        Raises:
            HandlerError: it did; the message names the call.
        """
        left = self.drop_unfinished()
        if not left:
            return
        name, was_started = left[0]
        fact = "had not ended when the handler returned" if was_started else "was not awaited, so it was never done"
        raise HandlerError(f"{argument}.{name}(…) {fact}. Write: await {argument}.{name}(…)")

    def drop_unfinished(self) -> list[tuple[str, bool]]:
        """Let go of the calls that have not ended; return their names and whether they were started."""
        left, self._unfinished = list(self._unfinished.values()), {}
        owned = [task.get_coro() for task in asyncio.all_tasks()] if left else []
        found = []
        for name, call in left:
            was_started = inspect.getcoroutinestate(call) != inspect.CORO_CREATED or call in owned
            found.append((name, was_started))
            if not was_started:
                call.close()
        return found
