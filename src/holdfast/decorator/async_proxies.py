"""Readers, writers and outputs as ``async def`` handlers see them: every call runs off the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from itertools import islice
from types import TracebackType
from typing import Any, NoReturn

from ..binding.reader import DbReader
from ..binding.writer import DbWriter
from ..core.blocking_calls import one_thread
from ..core.errors import ConfigurationError
from .awaited import TrackedCalls
from .off_loop import off_loop, to_the_end
from .out import DbOut

_Row = dict[str, object]


class AsyncDbOut(TrackedCalls):
    """``DbOut`` for async handlers."""

    def __init__(self, out: DbOut) -> None:
        super().__init__()
        self._out = out

    async def set(self, data: object) -> None:
        """Write rows, as ``DbOut.set``."""
        await off_loop(partial(self._out.set, data))


class AsyncDbReader(TrackedCalls):
    """``DbReader`` for async handlers."""

    def __init__(self, reader: DbReader) -> None:
        super().__init__()
        self._reader = reader

    async def get(self, *, pk: _Row) -> _Row | None:
        """Return a row by its primary key, as ``DbReader.get``."""
        return await off_loop(partial(self._reader.get, pk=pk))

    async def query(self, sql: str, *, params: _Row | None = None) -> list[_Row]:
        """Return every row, as ``DbReader.query``."""
        return await off_loop(partial(self._reader.query, sql, params=params))

    async def scalar(self, sql: str, *, params: _Row | None = None) -> object | None:
        """Return one value, as ``DbReader.scalar``."""
        return await off_loop(partial(self._reader.scalar, sql, params=params))

    async def one(self, sql: str, *, params: _Row | None = None) -> _Row:
        """Return the one row, as ``DbReader.one``."""
        return await off_loop(partial(self._reader.one, sql, params=params))

    async def one_or_none(self, sql: str, *, params: _Row | None = None) -> _Row | None:
        """Return the one row or None, as ``DbReader.one_or_none``."""
        return await off_loop(partial(self._reader.one_or_none, sql, params=params))

    async def stream(
        self, sql: str, *, params: _Row | None = None, chunk_size: int = 1000
    ) -> AsyncGenerator[_Row, None]:
        """Yield rows, as ``DbReader.stream``, reading a chunk at a time on one worker thread."""
        rows = self._reader.stream(sql, params=params, chunk_size=chunk_size)
        thread = one_thread("holdfast-stream")
        try:
            while chunk := await to_the_end(partial(_take, rows, chunk_size), thread):
                for row in chunk:
                    yield row
        finally:
            try:
                await to_the_end(rows.close, thread)
            finally:
                thread.shutdown(wait=False)

    def close(self) -> None:
        """Close the reader."""
        self._reader.close()


class AsyncDbWriter(TrackedCalls):
    """``DbWriter`` for async handlers. ``async with writer.transaction() as tx`` groups what is written through it."""

    def __init__(self, writer: DbWriter) -> None:
        super().__init__()
        self._writer = writer
        self._thread: ThreadPoolExecutor | None = None
        self._opened: tuple[asyncio.Task[Any] | None, AsyncDbWriter] | None = None

    async def insert(self, *, data: _Row) -> None:
        """Insert one row, as ``DbWriter.insert``."""
        await self._write(lambda writer: writer.insert(data=data))

    async def insert_many(self, *, rows: list[_Row]) -> None:
        """Insert rows, as ``DbWriter.insert_many``."""
        await self._write(lambda writer: writer.insert_many(rows=rows))

    async def upsert(self, *, data: _Row, conflict_columns: list[str]) -> None:
        """Insert or update one row, as ``DbWriter.upsert``."""
        await self._write(lambda writer: writer.upsert(data=data, conflict_columns=conflict_columns))

    async def upsert_many(self, *, rows: list[_Row], conflict_columns: list[str]) -> None:
        """Insert or update rows, as ``DbWriter.upsert_many``."""
        await self._write(lambda writer: writer.upsert_many(rows=rows, conflict_columns=conflict_columns))

    async def update(self, *, data: _Row, pk: _Row) -> None:
        """Update one row, as ``DbWriter.update``."""
        await self._write(lambda writer: writer.update(data=data, pk=pk))

    async def update_many(self, *, rows: list[_Row]) -> None:
        """Update rows, as ``DbWriter.update_many``."""
        await self._write(lambda writer: writer.update_many(rows=rows))

    async def delete(self, *, pk: _Row) -> None:
        """Delete one row, as ``DbWriter.delete``."""
        await self._write(lambda writer: writer.delete(pk=pk))

    async def delete_many(self, *, pks: list[_Row]) -> None:
        """Delete rows, as ``DbWriter.delete_many``."""
        await self._write(lambda writer: writer.delete_many(pks=pks))

    def transaction(self) -> AsyncTransactionBlock:
        """Commit all writes made through the handle together, or none: ``async with writer.transaction() as tx``.

        The handle's writes are part of it in whichever task; writes through this writer itself are so in the task that
        opened it, and are refused in all others while it is open. The whole transaction runs on one worker thread, so
        concurrent writes inside it come one after the other. It is ended before the block is left, also when the
        handler is cancelled.

        Raises:
            WriteError: one is open already, a write inside it failed, or the commit did.
        """
        return AsyncTransactionBlock(self._block())

    def close(self) -> None:
        """Close the writer."""
        self._writer.close()

    async def _write(self, step: Callable[[DbWriter], None]) -> None:
        part = self._opened[1] if self._opened is not None and self._opened[0] is asyncio.current_task() else self
        await off_loop(partial(step, part._writer), part._thread)

    @asynccontextmanager
    async def _block(self) -> AsyncIterator[AsyncDbWriter]:
        thread = one_thread("holdfast-transaction")
        transaction = self._writer.transaction()
        handle: AsyncDbWriter | None = None
        try:
            handle = self._handle(await to_the_end(transaction.__enter__, thread), thread)
            self._opened = (asyncio.current_task(), handle)
            yield handle
        except BaseException as error:
            await to_the_end(partial(transaction.__exit__, type(error), error, error.__traceback__), thread)
            raise
        else:
            await to_the_end(partial(transaction.__exit__, None, None, None), thread)
        finally:
            if handle is not None:
                self._opened, handle._thread = None, None
            thread.shutdown(wait=False)

    def _handle(self, writer: DbWriter, thread: ThreadPoolExecutor) -> AsyncDbWriter:
        """Return the handle of a transaction; its calls are waited for with this writer's own."""
        handle = AsyncDbWriter(writer)
        handle._thread, handle._unfinished = thread, self._unfinished
        return handle


class AsyncTransactionBlock:
    """What ``AsyncDbWriter.transaction()`` returns, for ``async with``."""

    def __init__(self, block: AbstractAsyncContextManager[AsyncDbWriter]) -> None:
        self._block = block

    async def __aenter__(self) -> AsyncDbWriter:
        return await self._block.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._block.__aexit__(kind, error, trace)

    def __enter__(self) -> NoReturn:
        raise ConfigurationError("The writer of an async handler has transactions for: async with writer.transaction()")

    def __exit__(self, *_: object) -> None:
        """Stand in: a block is never entered this way."""


def _take(rows: Generator[_Row, None, None], count: int) -> list[_Row]:
    return list(islice(rows, count))
