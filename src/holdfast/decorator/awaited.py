"""What handlers of Azure Functions call and await, and which of those calls they forgot to await."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from typing import Any

from ..core.errors import HandlerError
from ..runtime.awaited import Call, UnfinishedCalls, forgotten


class TrackedCalls:
    """Base of what handlers call and await: it knows which calls of its async methods have not ended yet."""

    def __init__(self) -> None:
        self._unfinished = UnfinishedCalls()

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name.startswith("_") or not inspect.iscoroutinefunction(found):
            return found
        return functools.wraps(found)(functools.partial(self._track, name, found))

    def _track(self, name: str, method: Callable[..., Call], *args: Any, **kwargs: Any) -> Call:
        return self._unfinished.track(name, functools.partial(method, *args, **kwargs))

    def require_awaited(self, argument: str) -> None:
        """Check, once the handler has returned, that it left no call behind.

        Raises:
            HandlerError: it did; the message names the call.
        """
        left = self.drop_unfinished()
        if not left:
            return
        name, was_started = left[0]
        call = f"{argument}.{name}"
        if not was_started:
            raise HandlerError(forgotten(call))
        raise HandlerError(f"{call}(…) had not ended when the handler returned. Write: await {call}(…)")

    def drop_unfinished(self) -> list[tuple[str, bool]]:
        """Let go of the calls that have not ended; return their names and whether they were started."""
        owned = [task.get_coro() for task in asyncio.all_tasks()] if self._unfinished else []
        return self._unfinished.drop(owned)
