"""Calling the user's handler: with or without context, ``def`` or ``async def``, stopped when the lease is lost."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import os
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from .errors import ConfigurationError, HandlerError, LostLeaseError
from .handler_forms import is_async, is_generator

_EVENTS_ONLY = 1
_EVENTS_AND_CONTEXT = 2


class Losable(Protocol):
    """A lease, as far as a handler's call needs to know it."""

    @property
    def lost(self) -> threading.Event:
        """Return what is set once it is lost."""
        ...

    def when_lost(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback`` once the lease is lost; return what takes that back."""
        ...


class HandlerInvoker:
    """A handler whose form was looked at once: one positional parameter gets the events, two get the context too."""

    def __init__(self, handler: Callable[..., Any], loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._handler = handler
        self._loop = loop
        _refuse_generator(handler)
        self._takes_context = _positional_parameters(handler) >= _EVENTS_AND_CONTEXT
        self.is_async = is_async(handler)

    def invoke(self, events: list[Any], context: object, lease: Losable) -> object:
        """Call the handler, wait for it and return its answer. Its own exceptions come through unchanged.

        Raises:
            LostLeaseError: an async handler was cancelled because the lease was lost.
        """
        result = self._handler(events, context) if self._takes_context else self._handler(events)
        if inspect.isawaitable(result):
            return _wait_for(result, lease, self._loop or _own_loop.running())
        if inspect.isgenerator(result) or inspect.isasyncgen(result):
            raise HandlerError(
                "The handler returned a generator, which nobody runs, so the events were not handled. Handle them and "
                "return."
            )
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
    return len(positional)


def _wait_for(awaitable: Awaitable[Any], lease: Losable, loop: asyncio.AbstractEventLoop) -> object:
    async def run() -> Any:
        try:
            return await awaitable
        except (SystemExit, KeyboardInterrupt) as error:  # they would end the loop, and every handler on it
            raise HandlerError(f"The handler raised {type(error).__name__}: {error}.") from error

    future = asyncio.run_coroutine_threadsafe(run(), loop)
    forget = lease.when_lost(lambda: _cancel(future))
    try:
        return future.result()
    except (concurrent.futures.CancelledError, asyncio.CancelledError) as error:
        if lease.lost.is_set():
            raise LostLeaseError(
                "The handler was cancelled because its lease was lost. Nothing was committed."
            ) from error
        raise
    finally:
        forget()


def _cancel(future: concurrent.futures.Future[Any]) -> None:
    future.cancel()


class _EventLoopThread:
    """One event loop for async handlers called by code that has none, on a thread of its own, started on first use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = 0

    def running(self) -> asyncio.AbstractEventLoop:
        """Return the loop, started."""
        with self._lock:
            if self._loop is None or self._process != os.getpid():  # a fork copies the loop, not its thread
                self._loop, self._process = asyncio.new_event_loop(), os.getpid()
                threading.Thread(target=self._loop.run_forever, name="holdfast-async", daemon=True).start()
            return self._loop


_own_loop = _EventLoopThread()
