"""Calls that a handler forgot to await: nothing of them was done, yet its work would count as done."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Coroutine
from contextlib import suppress
from typing import Any

from ..core.errors import HandlerError

Call = Coroutine[Any, Any, Any]


class UnfinishedCalls:
    """The calls of a handler that have not ended yet, with what people call them."""

    def __init__(self) -> None:
        self._calls: dict[object, tuple[str, Call]] = {}

    def track(self, name: str, begin: Callable[[], Call]) -> Call:
        """Return what begins when it is awaited, and is known here until it has ended."""
        place = object()

        async def run() -> Any:
            try:
                return await begin()
            finally:
                self._calls.pop(place, None)

        call = run()
        self._calls[place] = (name, call)
        return call

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def have_unbegun(self) -> bool:
        """Return whether there is one that nobody has awaited."""
        return any(_is_unbegun(call) for _, call in list(self._calls.values()))

    def drop(self, owned: Container[object] = ()) -> list[tuple[str, bool]]:
        """Let go of all calls; return their names and whether they were begun, as those are that someone else owns."""
        left, self._calls = list(self._calls.values()), {}
        return [(name, not (_is_unbegun(call) and call not in owned and _closed(call))) for name, call in left]


def require_run(result: object, *, awaits: bool) -> None:
    """Refuse what a handler returned when it is work that nobody does: a coroutine, or a generator.

    Args:
        result: what it returned.
        awaits: whether it is an ``async def``, which could have awaited it.

    Raises:
        HandlerError: it is; the message says what to write.
    """
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise HandlerError("The handler returned a generator, which nobody runs, so nothing was done. Return a value.")
    if not inspect.isawaitable(result):
        return
    name = getattr(result, "__qualname__", type(result).__name__)
    if inspect.iscoroutine(result):
        result.close()  # else its end would be a warning elsewhere
    advice = "Write return await …" if awaits else "Make the handler an async def, and await it there"
    raise HandlerError(f"The handler returned '{name}' without awaiting it, so it was never done. {advice}.")


def forgotten(what: str) -> str:
    """Return the error of a handler that forgot to await a call."""
    return f"{what}(…) was not awaited, so it was never done. Write: await {what}(…)"


def _is_unbegun(call: Call) -> bool:
    return inspect.getcoroutinestate(call) == inspect.CORO_CREATED


def _closed(call: Call) -> bool:
    with suppress(RuntimeError, ValueError):  # it begins at this very moment
        call.close()
    return True
