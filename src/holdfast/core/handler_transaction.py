"""A transaction lent to a handler and ended by Holdfast: opened on first use, never after the work has ended."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

from sqlalchemy import text
from sqlalchemy.engine import Connection, Engine, RootTransaction
from sqlalchemy.exc import DBAPIError

from .engine import writing
from .errors import Ambiguous, HandlerError, Unavailable
from .own_thread import on_thread, one_thread
from .places import Places

_log = logging.getLogger("holdfast")
_IDLE_LEASES = 10
_STATEMENT_SECONDS = 10.0
_BREAK_SECONDS = 5.0


class HandlerTransaction:
    """The transaction of one piece of work.

    Args:
        engine: where it is opened.
        ttl_seconds: how long the lease lasts that the work is done under.
        protect: called with True once a SQLite transaction holds the write lock, with False when it has ended: no
            heartbeat can be written in between, nor can anyone else take the lease.
        places: what to wait for before it is opened; None to open it at once.
    """

    def __init__(
        self, engine: Engine, ttl_seconds: float, protect: Callable[[bool], None], places: Places | None = None
    ) -> None:
        self._engine = engine
        self._idle_seconds = _IDLE_LEASES * ttl_seconds
        self._protect = protect
        self._places = places
        self._place_lock = threading.Lock()
        self._has_place = places is None
        self._connection: Connection | None = None
        self._transaction: RootTransaction | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._has_ended = False
        self._is_broken = False
        self._in_use = threading.Lock()

    @property
    def is_used(self) -> bool:
        """Return whether the handler asked for the connection."""
        return self._connection is not None

    @property
    def is_active(self) -> bool:
        """Return whether the transaction is open: False also when the handler ended it itself."""
        return self._transaction is not None and self._transaction.is_active

    @property
    def connection(self) -> Connection:
        """Return the connection, opening it and its transaction on first use.

        Raises:
            HandlerError: the work has ended, so nothing written now could commit with it.
        """
        self._require_open()
        if not self._has_place and self._places is not None:
            self._places.take()
            self._keep_place()
        if self._connection is None:
            self._open()
        assert self._connection is not None
        return self._connection

    def step(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a method of the connection. If the work has ended meanwhile, it is left to this thread to let go."""
        return self.lend(lambda connection: getattr(connection, name)(*args, **kwargs), (), {})

    def lend(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function with the connection, under the same rule."""
        with self._in_use:
            try:
                return function(self.connection, *args, **kwargs)
            finally:
                if self._has_ended:
                    self._let_go()

    def last_step(self, step: Callable[[Connection], bool]) -> bool:
        """Do what comes after the handler's statements: one that it did not wait for is waited for now."""
        with self._in_use:
            return step(self.connection)

    async def thread(self) -> Executor:
        """Return the thread for the next step, which no other transaction uses; wait on the event loop for a place."""
        self._require_open()
        if not self._has_place and self._places is not None:
            await self._places.take_async()
            self._keep_place()
        if self._thread is None:
            self._thread = one_thread()
        return self._thread

    def commit(self) -> None:
        """Commit the handler's writes and the record of progress together."""
        assert self._transaction is not None
        try:
            self._transaction.commit()
        except DBAPIError as error:
            kind = Ambiguous if error.connection_invalidated else Unavailable
            raise kind(f"The commit was not answered: {str(error.orig).strip()}") from error
        finally:
            self.close()

    def rollback(self) -> None:
        """Undo what the handler wrote."""
        self.close()

    def close(self) -> None:
        """End the transaction, if it is still open, without keeping anything. It cannot be used any more.

        A statement that a cancelled handler left running is waited for, but not for ever: then its connection is cut
        off, and whichever thread has it last lets go of it. A connection is never closed under a statement.
        """
        self._has_ended = True
        if self._thread is not None:
            self._thread.shutdown(wait=False)
        if self._in_use.acquire(timeout=_STATEMENT_SECONDS) or self._break_off():
            try:
                self._let_go()
            finally:
                self._in_use.release()

    def cut(self) -> None:
        """End the transaction under a handler that does not end: its statements fail from now on, and nothing commits.

        Called from another thread; the connection is thrown away when the handler lets go of it.
        """
        self._has_ended = self._is_broken = True
        if self._connection is not None:
            _cut(self._connection)
            _undo_on_sqlite(self._connection)

    def _require_open(self) -> None:
        if self._has_ended:
            raise HandlerError(
                "context.transaction was used after its delivery had ended. Use it only inside the handler, and await "
                "or join what you start there."
            )

    def _open(self) -> None:
        connection = self._connect()
        try:
            self._transaction = connection.begin()
            if self._engine.dialect.name == "sqlite":
                self._protect(True)
            else:
                self._bound_idle_time(connection)
        except BaseException:
            self._transaction = None
            _give_back(connection, is_broken=True)
            raise
        self._connection = connection

    def _connect(self) -> Connection:
        return writing(self._engine)

    def _break_off(self) -> bool:
        """End a statement that takes too long; return whether it has ended, and nobody uses the connection now."""
        self._is_broken = True
        if self._connection is None:
            return False
        _cut(self._connection)
        return self._in_use.acquire(timeout=_BREAK_SECONDS)

    def _let_go(self) -> None:
        connection, self._connection, self._transaction = self._connection, None, None
        try:
            if connection is not None:
                _give_back(connection, is_broken=self._is_broken)
                self._protect(False)
        finally:
            self._give_place_back()

    def _keep_place(self) -> None:
        self._has_place = True
        if self._has_ended:
            self._give_place_back()
            self._require_open()

    def _give_place_back(self) -> None:
        with self._place_lock:
            had_place, self._has_place = self._has_place, False
        if had_place and self._places is not None:
            self._places.give_back()

    def _bound_idle_time(self, connection: Connection) -> None:
        """Let the server end the transaction of a machine that froze, so that its row locks do not stay for ever."""
        if self._engine.dialect.name == "postgresql":
            connection.execute(
                text("SELECT set_config('idle_in_transaction_session_timeout', :limit, true)"),
                {"limit": f"{max(1, int(self._idle_seconds * 1000))}"},
            )


def _give_back(connection: Connection, *, is_broken: bool) -> None:
    """Roll back and return a connection to its pool, or throw it away. Nothing that fails here matters to anyone."""
    try:
        if is_broken:
            connection.invalidate()
        connection.close()
    except Exception:
        _log.debug("A connection could not be rolled back and was thrown away", exc_info=True)
        with suppress(Exception):
            connection.invalidate()
            connection.close()


def _cut(connection: Connection) -> None:
    """Have the thread that waits for a statement's answer get an error, and the server stop it where it can be told."""
    try:
        driver: Any = connection.connection.driver_connection
        if isinstance(driver, sqlite3.Connection):
            driver.interrupt()
            return
        if hasattr(driver, "cancel_safe"):
            with suppress(Exception):
                driver.cancel_safe(timeout=_BREAK_SECONDS)
        with socket.socket(fileno=os.dup(getattr(driver, "_sock", driver).fileno())) as line:
            line.shutdown(socket.SHUT_RDWR)
    except Exception:
        _log.debug("A statement could not be broken off; its thread ends when it does", exc_info=True)


def _undo_on_sqlite(connection: Connection) -> None:
    """Free SQLite's write lock from another thread, and refuse what the handler would write on the connection later."""
    driver: Any = connection.connection.driver_connection
    if isinstance(driver, sqlite3.Connection):
        with suppress(sqlite3.Error):
            driver.rollback()
            driver.execute("PRAGMA query_only = ON")


class AsyncTransaction:
    """The transaction as ``async def`` handlers see it: every method of the connection, awaited, off the event loop."""

    def __init__(self, transaction: HandlerTransaction) -> None:
        self._transaction = transaction
        self._turn = asyncio.Lock()

    async def run_sync(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function with the connection itself, for what needs one: enqueueing a job in this transaction, say."""
        async with self._turn:
            thread = await self._transaction.thread()
            return await on_thread(thread, partial(self._transaction.lend, function, args, kwargs))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            async with self._turn:
                thread = await self._transaction.thread()
                return await on_thread(thread, partial(self._transaction.step, name, args, kwargs))

        return call
