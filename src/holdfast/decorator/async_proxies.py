"""Readers, writers and outputs as ``async def`` handlers see them: every call runs off the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

from ..binding.reader import DbReader
from ..binding.writer import DbWriter
from .out import DbOut

_Result = TypeVar("_Result")
_Row = dict[str, object]


class AsyncDbOut:
    """``DbOut`` for async handlers."""

    def __init__(self, out: DbOut) -> None:
        self._out = out

    async def set(self, data: object) -> None:
        """Write rows, as ``DbOut.set``."""
        await asyncio.to_thread(self._out.set, data)


class AsyncDbReader:
    """``DbReader`` for async handlers."""

    def __init__(self, reader: DbReader) -> None:
        self._reader = reader

    async def get(self, *, pk: _Row) -> _Row | None:
        """Return a row by its primary key, as ``DbReader.get``."""
        return await asyncio.to_thread(self._reader.get, pk=pk)

    async def query(self, sql: str, *, params: _Row | None = None) -> list[_Row]:
        """Return every row, as ``DbReader.query``."""
        return await asyncio.to_thread(self._reader.query, sql, params=params)

    async def scalar(self, sql: str, *, params: _Row | None = None) -> object | None:
        """Return one value, as ``DbReader.scalar``."""
        return await asyncio.to_thread(self._reader.scalar, sql, params=params)

    async def one(self, sql: str, *, params: _Row | None = None) -> _Row:
        """Return the one row, as ``DbReader.one``."""
        return await asyncio.to_thread(self._reader.one, sql, params=params)

    async def one_or_none(self, sql: str, *, params: _Row | None = None) -> _Row | None:
        """Return the one row or None, as ``DbReader.one_or_none``."""
        return await asyncio.to_thread(self._reader.one_or_none, sql, params=params)

    async def stream(self, sql: str, *, params: _Row | None = None, chunk_size: int = 1000) -> AsyncIterator[_Row]:
        """Yield rows, as ``DbReader.stream``, reading a chunk at a time on one worker thread."""
        with ThreadPoolExecutor(1, thread_name_prefix="holdfast-stream") as thread:
            rows = self._reader.stream(sql, params=params, chunk_size=chunk_size)
            try:
                while chunk := await _on(thread, partial(_take, rows, chunk_size)):
                    for row in chunk:
                        yield row
            finally:
                await _on(thread, rows.close)  # type: ignore[attr-defined]  # a generator has close

    def close(self) -> None:
        """Close the reader."""
        self._reader.close()


class AsyncDbWriter:
    """``DbWriter`` for async handlers. ``async with writer.transaction() as tx`` groups writes."""

    def __init__(self, writer: DbWriter, run: Callable[[Callable[[], Any]], Any] | None = None) -> None:
        self._writer = writer
        self._run = run or asyncio.to_thread

    async def insert(self, *, data: _Row) -> None:
        """Insert one row, as ``DbWriter.insert``."""
        await self._run(partial(self._writer.insert, data=data))

    async def insert_many(self, *, rows: list[_Row]) -> None:
        """Insert rows, as ``DbWriter.insert_many``."""
        await self._run(partial(self._writer.insert_many, rows=rows))

    async def upsert(self, *, data: _Row, conflict_columns: list[str]) -> None:
        """Insert or update one row, as ``DbWriter.upsert``."""
        await self._run(partial(self._writer.upsert, data=data, conflict_columns=conflict_columns))

    async def upsert_many(self, *, rows: list[_Row], conflict_columns: list[str]) -> None:
        """Insert or update rows, as ``DbWriter.upsert_many``."""
        await self._run(partial(self._writer.upsert_many, rows=rows, conflict_columns=conflict_columns))

    async def update(self, *, data: _Row, pk: _Row) -> None:
        """Update one row, as ``DbWriter.update``."""
        await self._run(partial(self._writer.update, data=data, pk=pk))

    async def update_many(self, *, rows: list[_Row]) -> None:
        """Update rows, as ``DbWriter.update_many``."""
        await self._run(partial(self._writer.update_many, rows=rows))

    async def delete(self, *, pk: _Row) -> None:
        """Delete one row, as ``DbWriter.delete``."""
        await self._run(partial(self._writer.delete, pk=pk))

    async def delete_many(self, *, pks: list[_Row]) -> None:
        """Delete rows, as ``DbWriter.delete_many``."""
        await self._run(partial(self._writer.delete_many, pks=pks))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncDbWriter]:
        """Commit every write made through the yielded writer together, or none.

        The whole transaction runs on one worker thread, so concurrent writes inside it come one after the other.
        """
        with ThreadPoolExecutor(1, thread_name_prefix="holdfast-transaction") as thread:
            transaction = self._writer.transaction()
            await _on(thread, transaction.__enter__)
            try:
                yield AsyncDbWriter(self._writer, partial(_on, thread))
            except BaseException as error:
                await asyncio.shield(
                    _on(thread, partial(transaction.__exit__, type(error), error, error.__traceback__))
                )
                raise
            else:
                await asyncio.shield(_on(thread, partial(transaction.__exit__, None, None, None)))

    def close(self) -> None:
        """Close the writer."""
        self._writer.close()


async def _on(thread: ThreadPoolExecutor, step: Callable[[], _Result]) -> _Result:
    return await asyncio.get_running_loop().run_in_executor(thread, step)


def _take(rows: Any, count: int) -> list[_Row]:
    return [row for _, row in zip(range(count), rows, strict=False)]
