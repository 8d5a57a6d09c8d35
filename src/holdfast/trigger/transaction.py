"""``context.transaction``: the handler's writes and the checkpoint in one database transaction.

The connection is opened when the handler first asks for it. The checkpoint is written as the transaction's last
statement, fenced by owner and token: when the lease is gone, that statement changes no row and everything rolls back.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy.engine import Engine

from ..core.errors import CommitError, ConfigurationError
from ..core.handler_transaction import HandlerTransaction
from ..state.documents import DocumentStore, ETag, Written
from ..state.lease import HeldLease
from ..state.stores.sql import SqlDocumentStore


class DeliveryTransaction(HandlerTransaction):
    """The transaction of one delivery. Implements ``JoinedTransaction`` for the commit."""

    def __init__(self, engine: Engine, documents: SqlDocumentStore, lease: HeldLease) -> None:
        super().__init__(engine, lease.ttl_seconds, lease.protect)
        self._documents = documents

    def write(self, name: str, content: bytes, if_match: ETag) -> Written:
        """Write the checkpoint as the last statement of the transaction."""
        if not self.is_active:
            raise CommitError(
                "The handler ended context.transaction itself, so its writes and the checkpoint could not commit "
                "together. Leave commit and rollback to Holdfast: return to commit, raise to roll back."
            )
        return self._documents.replace_on(self.connection, name, content, if_match)


def transaction_factory(
    documents: DocumentStore | None, engine: Engine | None
) -> Callable[[HeldLease], DeliveryTransaction] | None:
    """Return what opens a delivery's transaction, or None when the state is not kept in SQL."""
    if not isinstance(documents, SqlDocumentStore):
        return None
    store = documents
    return lambda lease: DeliveryTransaction(engine or store.engine, store, lease)


def no_transaction() -> ConfigurationError:
    """Return the error for a handler that asks for a transaction where none can be had."""
    return ConfigurationError(
        "context.transaction is not available here: the checkpoint is not kept in a SQL database, so the handler's "
        "writes cannot commit together with it. Keep the state in SQL, or make the handler idempotent with event_id."
    )
