"""Calling the user's handler: with or without context, ``def`` or ``async def``, stopped when the lease is lost."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Protocol

from ..core.errors import ConfigurationError, EventLoopUnavailable, HandlerError, LostLeaseError
from ..core.handler_forms import is_async, is_generator
from .awaited import require_run
from .event_loop import EventLoop, handlers_loop
from .own_context import in_own_context, own_decimals

_EVENTS_ONLY = 1
_EVENTS_AND_CONTEXT = 2
_CONTEXT_NAMES = ("context", "ctx")
_LOOK_SECONDS = 0.2


class Losable(Protocol):
    """A lease, as far as a handler's call needs to know it."""

    @property
    def lost(self) -> threading.Event:
        """Return what is set once it is lost."""
        ...

    @property
    def ttl_seconds(self) -> float:
        """Return how long it lives without being extended."""
        ...

    def when_lost(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback`` once the lease is lost; return what takes that back."""
        ...


class HandlerInvoker:
    """A handler whose form was looked at once: one positional parameter gets the events, two get the context too.

    A second parameter with a default, such as ``retries=3``, is the user's own unless it is called ``context``.

    Args:
        handler: what is called.
        loop: where an async handler runs; on the loop of this process when left out.
        original: the user's function, when ``handler`` only passes the arguments on.
    """

    def __init__(
        self,
        handler: Callable[..., Any],
        loop: asyncio.AbstractEventLoop | None = None,
        *,
        original: Callable[..., Any] | None = None,
    ) -> None:
        self._handler = handler
        self._loop = loop
        original = original or handler
        _refuse_generator(original)
        self._takes_context = _positional_parameters(handler) >= _EVENTS_AND_CONTEXT
        self._title = f"handler '{getattr(original, '__qualname__', original)}'"
        self.is_async = is_async(original)

    def require_loop(self) -> None:
        """Refuse to begin anything for an async handler whose event loop does not turn.

        Raises:
            EventLoopUnavailable: it does not; try again later, or leave the work to another process.
        """
        if self.is_async and self._loop is None:
            _require_turning(handlers_loop())

    def invoke(self, events: list[Any], context: object, lease: Losable) -> object:
        """Call the handler, wait for it and return its answer. Its own exceptions come through unchanged.

        Raises:
            LostLeaseError: an async handler was cancelled because the lease was lost.
            EventLoopUnavailable: it was not called, or cancelled, because its event loop is blocked or has died.
        """
        self.require_loop()
        call = partial(self._handler, events, context) if self._takes_context else partial(self._handler, events)
        if self.is_async:
            return _Call(call, self._title).wait(lease, self._loop)
        result = in_own_context(call)
        if inspect.isawaitable(result):
            return _Call(lambda: result, self._title).wait(lease, self._loop)
        require_run(result, awaits=False)
        return result


def _refuse_generator(handler: Callable[..., Any]) -> None:
    """Refuse a handler with ``yield``: calling it runs nothing, and its events would count as handled.

    Raises:
        ConfigurationError: it is a generator function.
    """
    if is_generator(handler):
        name = getattr(handler, "__qualname__", repr(handler))
        raise ConfigurationError(
            f"Handler '{name}' is a generator (it has a yield), so calling it runs nothing. Remove the yield."
        )


def _positional_parameters(handler: Callable[..., Any]) -> int:
    """Return how many arguments the handler takes.

    Raises:
        ConfigurationError: it cannot be called with the events, or needs more than events and context.
    """
    try:
        parameters = inspect.signature(handler).parameters.values()
    except (TypeError, ValueError):
        return _EVENTS_ONLY
    positional = [
        parameter
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    takes_any = any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters)
    required = [parameter for parameter in positional if parameter.default is parameter.empty]
    keywords = [
        parameter
        for parameter in parameters
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty
    ]
    if (not positional and not takes_any) or len(required) > _EVENTS_AND_CONTEXT or keywords:
        name = getattr(handler, "__qualname__", repr(handler))
        raise ConfigurationError(
            f"Handler '{name}' cannot be called: it must take the events, or the events and the context, as in "
            "def handle(changes) or def handle(changes, context)."
        )
    return len(positional[:1]) + len([parameter for parameter in positional[1:] if _is_passed(parameter)])


def _is_passed(parameter: inspect.Parameter) -> bool:
    """Return whether a parameter is ours to fill: one with a value of its own is the user's, unless it says context."""
    return parameter.default is parameter.empty or parameter.name.strip("_") in _CONTEXT_NAMES


def _require_turning(loop: EventLoop) -> None:
    if loop.is_stuck:
        raise EventLoopUnavailable(f"The event loop of async handlers does not turn: {loop.blocked_by} blocks it.")


class _Call:
    """One call of an async handler, waited for from another thread."""

    def __init__(self, begin: Callable[[], Awaitable[Any]], title: str) -> None:
        self._begin = begin
        self._title = title
        self._task: asyncio.Task[Any] | None = None

    def wait(self, lease: Losable, callers_loop: asyncio.AbstractEventLoop | None) -> object:
        """Run it on the caller's loop, else on that of this process, as long as the lease is ours and the loop turns.

        Raises:
            LostLeaseError: it was cancelled because the lease was lost.
            EventLoopUnavailable: it was cancelled because its loop is blocked by another, or has died.
        """
        loop = handlers_loop()
        future = self._submitted(callers_loop or loop.started())
        forget = lease.when_lost(lambda: _cancel(future))
        try:
            while callers_loop is None and not concurrent.futures.wait([future], _LOOK_SECONDS).done:
                self._look(loop, lease)
            return future.result()
        except (concurrent.futures.CancelledError, asyncio.CancelledError) as error:
            if lease.lost.is_set():
                raise LostLeaseError(
                    "The handler was cancelled because its lease was lost. Nothing was committed."
                ) from error
            raise
        finally:
            forget()
            future.cancel()

    def _submitted(self, loop: asyncio.AbstractEventLoop) -> concurrent.futures.Future[Any]:
        coroutine = self._run()
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, loop)
        except RuntimeError as error:
            coroutine.close()
            raise EventLoopUnavailable(f"The event loop of async handlers has died: {error}") from error

    async def _run(self) -> Any:
        self._task = asyncio.current_task()
        assert self._task is not None
        self._task.set_name(self._title)
        own_decimals()
        try:
            result = await self._begin()
            require_run(result, awaits=True)
            return result
        except (SystemExit, KeyboardInterrupt) as error:  # they would end the loop, and every handler on it
            raise HandlerError(f"The handler raised {type(error).__name__}: {error}.") from error

    def _look(self, loop: EventLoop, lease: Losable) -> None:
        """Wait no longer than a lease for a loop that another handler blocks: whoever else takes over can go on."""
        if not loop.is_alive:
            raise EventLoopUnavailable("The event loop of async handlers died. Nothing was committed.")
        loop.knock()
        if loop.is_stuck:
            loop.warn_once()
            if loop.stuck_seconds > lease.ttl_seconds and loop.current_task is not self._task:
                _require_turning(loop)


def _cancel(future: concurrent.futures.Future[Any]) -> None:
    future.cancel()
