"""``context.transaction``: the handler's writes and the checkpoint in one database transaction.

The connection is opened when the handler first asks for it. The checkpoint is written as the transaction's last
statement, fenced by owner and token: when the lease is gone, that statement changes no row and everything rolls back.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from sqlalchemy import text
from sqlalchemy.engine import Connection, Engine, RootTransaction
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from ..core.engine import writing
from ..core.errors import Ambiguous, CommitError, ConfigurationError, HandlerError, Unavailable
from ..state.documents import DocumentStore, ETag, Written
from ..state.lease import HeldLease
from ..state.stores.sql import SqlDocumentStore

_IDLE_LEASES = 10
_STATEMENT_SECONDS = 10.0


class HandlerTransaction:
    """The transaction of one delivery. Implements ``JoinedTransaction`` for the commit."""

    def __init__(self, engine: Engine, documents: SqlDocumentStore, lease: HeldLease) -> None:
        self._engine = engine
        self._documents = documents
        self._lease = lease
        self._connection: Connection | None = None
        self._transaction: RootTransaction | None = None
        self._has_ended = False
        self.in_use = threading.Lock()

    @property
    def is_used(self) -> bool:
        """Return whether the handler asked for the connection."""
        return self._connection is not None

    @property
    def connection(self) -> Connection:
        """Return the connection, opening it and its transaction on first use.

        Raises:
            HandlerError: the delivery has ended, so nothing written now could commit with it.
        """
        if self._has_ended:
            raise HandlerError(
                "context.transaction was used after its delivery had ended. Use it only inside the handler, and await "
                "or join what you start there."
            )
        if self._connection is None:
            self._connection = writing(self._engine)
            self._transaction = self._connection.begin()
            if self._engine.dialect.name == "sqlite":
                self._lease.protect(True)
            else:
                self._bound_idle_time(self._connection)
        return self._connection

    def write(self, name: str, content: bytes, if_match: ETag) -> Written:
        """Write the checkpoint as the last statement of the transaction."""
        if self._transaction is None or not self._transaction.is_active:
            raise CommitError(
                "The handler ended context.transaction itself, so its writes and the checkpoint could not commit "
                "together. Leave commit and rollback to Holdfast: return to commit, raise to roll back."
            )
        return self._documents.replace_on(self.connection, name, content, if_match)

    def commit(self) -> None:
        """Commit the handler's writes and the checkpoint together."""
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
            self._lease.protect(False)

    def _bound_idle_time(self, connection: Connection) -> None:
        """Let the server end the transaction of a machine that froze, so that its row locks do not stay for ever."""
        seconds = _IDLE_LEASES * self._lease.ttl_seconds
        if self._engine.dialect.name == "postgresql":
            connection.execute(
                text("SELECT set_config('idle_in_transaction_session_timeout', :limit, true)"),
                {"limit": f"{max(1, int(seconds * 1000))}"},
            )


def transaction_factory(
    documents: DocumentStore | None, engine: Engine | None
) -> Callable[[HeldLease], HandlerTransaction] | None:
    """Return what opens a delivery's transaction, or None when the state is not kept in SQL."""
    if not isinstance(documents, SqlDocumentStore):
        return None
    store = documents
    return lambda lease: HandlerTransaction(engine or store.engine, store, lease)


def no_transaction() -> ConfigurationError:
    """Return the error for a handler that asks for a transaction where none can be had."""
    return ConfigurationError(
        "context.transaction is not available here: the checkpoint is not kept in a SQL database, so the handler's "
        "writes cannot commit together with it. Keep the state in SQL, or make the handler idempotent with event_id."
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
