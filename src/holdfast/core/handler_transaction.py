"""A transaction lent to a handler and ended by Holdfast: opened on first use, never after the work has ended."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from sqlalchemy import text
from sqlalchemy.engine import Connection, Engine, RootTransaction
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from .engine import writing
from .errors import Ambiguous, HandlerError, Unavailable

_IDLE_LEASES = 10
_STATEMENT_SECONDS = 10.0


class HandlerTransaction:
    """The transaction of one piece of work.

    Args:
        engine: where it is opened.
        ttl_seconds: how long the lease lasts that the work is done under.
        protect: called with True once a SQLite transaction holds the write lock, with False when it has ended: no
            heartbeat can be written in between, nor can anyone else take the lease.
    """

    def __init__(self, engine: Engine, ttl_seconds: float, protect: Callable[[bool], None]) -> None:
        self._engine = engine
        self._ttl_seconds = ttl_seconds
        self._protect = protect
        self._connection: Connection | None = None
        self._transaction: RootTransaction | None = None
        self._has_ended = False
        self.in_use = threading.Lock()

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
        if self._has_ended:
            raise HandlerError(
                "context.transaction was used after its delivery had ended. Use it only inside the handler, and await "
                "or join what you start there."
            )
        if self._connection is None:
            self._connection = self._connect()
            self._transaction = self._connection.begin()
            if self._engine.dialect.name == "sqlite":
                self._protect(True)
            else:
                self._bound_idle_time(self._connection)
        return self._connection

    def _connect(self) -> Connection:
        return writing(self._engine)

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

        A statement that a cancelled handler left running is waited for: a connection must not be closed under it.
        """
        self._has_ended = True
        if self.in_use.acquire(timeout=_STATEMENT_SECONDS):
            self.in_use.release()
        connection, self._connection, self._transaction = self._connection, None, None
        if connection is None:
            return
        try:
            connection.close()
        except SQLAlchemyError:
            connection.invalidate()
        finally:
            self._protect(False)

    def _bound_idle_time(self, connection: Connection) -> None:
        """Let the server end the transaction of a machine that froze, so that its row locks do not stay for ever."""
        seconds = _IDLE_LEASES * self._ttl_seconds
        if self._engine.dialect.name == "postgresql":
            connection.execute(
                text("SELECT set_config('idle_in_transaction_session_timeout', :limit, true)"),
                {"limit": f"{max(1, int(seconds * 1000))}"},
            )


class AsyncTransaction:
    """The transaction as ``async def`` handlers see it: every method of the connection, awaited, off the event loop."""

    def __init__(self, transaction: HandlerTransaction) -> None:
        self._transaction = transaction
        self._turn = asyncio.Lock()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            async with self._turn:
                return await asyncio.to_thread(self._call, name, args, kwargs)

        return call

    def _call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with self._transaction.in_use:
            return getattr(self._transaction.connection, name)(*args, **kwargs)
