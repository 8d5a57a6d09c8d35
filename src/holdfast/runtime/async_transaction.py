"""The handler's transaction as ``async def`` handlers see it: the same one, behind an awaiting face.

Every step runs off the event loop, on one thread that the transaction has for itself, one after the other. A step that
the handler forgot to await was never done: then its work is not either.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any

from sqlalchemy.engine import Connection, NestedTransaction

from ..core.blocking_calls import on_thread
from .transaction import HandlerTransaction


class AsyncTransaction:
    """Every method of the connection, awaited."""

    def __init__(self, transaction: HandlerTransaction) -> None:
        self._transaction = transaction
        self._turn = asyncio.Lock()

    def run_sync(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        """Call a function with the connection itself, for what needs one: enqueueing a job in this transaction, say."""
        return self.step("run_sync", lambda connection: function(connection, *args, **kwargs))

    def step(self, name: str, function: Callable[[Connection], Any]) -> Coroutine[Any, Any, Any]:
        """Return a step to be awaited, under the name that the handler knows it by."""
        return self._transaction.calls.track(name, partial(self._take_step, function))

    async def _take_step(self, function: Callable[[Connection], Any]) -> Any:
        async with self._turn:
            thread = await self._transaction.thread()
            return await on_thread(thread, partial(self._transaction.lend, function))

    def begin_nested(self) -> AsyncNested:
        """Make a savepoint: ``async with context.transaction.begin_nested():``, or await it and end it yourself."""
        return AsyncNested(self)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
            return self.step(name, lambda connection: getattr(connection, name)(*args, **kwargs))

        return call


class AsyncNested:
    """A savepoint, made when it is awaited or entered. Leaving it by an error undoes what came since."""

    def __init__(self, transaction: AsyncTransaction) -> None:
        self._transaction = transaction
        self._nested: NestedTransaction | None = None
        self._making = transaction.step("begin_nested", Connection.begin_nested)

    def __await__(self) -> Generator[Any, None, AsyncNested]:
        return self.__aenter__().__await__()

    async def __aenter__(self) -> AsyncNested:
        if self._nested is None:
            self._nested = await self._making
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *details: object) -> None:
        if kind is None:
            await self.commit()
        else:
            await self.rollback()

    def commit(self) -> Coroutine[Any, Any, None]:
        """Release the savepoint: what came since stays in the transaction."""
        return self._transaction.step("begin_nested().commit", lambda connection: self._made().commit())

    def rollback(self) -> Coroutine[Any, Any, None]:
        """Undo what came since the savepoint."""
        return self._transaction.step("begin_nested().rollback", lambda connection: self._made().rollback())

    def _made(self) -> NestedTransaction:
        assert self._nested is not None, "await it, or enter it, first"
        return self._nested
