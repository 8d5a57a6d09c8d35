"""What every handler is told about the work it is part of, and what it may do with it, whatever the workload."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ..core.errors import ConfigurationError
from ..core.types import JsonValue
from .transaction import AsyncTransaction, HandlerTransaction

NO_TRANSACTION = (
    "context.transaction is not available here: what records this work as done is not kept in a SQL database, so the "
    "handler's writes cannot commit together with it. Keep it in SQL, or make the handler idempotent."
)


def _no_heartbeat(progress: JsonValue) -> None:
    """Stand in where a context was built by hand, as in a test."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerContext:
    """The context of one piece of work.

    ``attempt`` counts the tries, from 1. ``fencing_token`` grows with every holder: pass it to systems that can refuse
    a lower one. ``lease_lost`` is set when another worker may have taken over: stop when convenient, nothing will be
    recorded. ``deadline`` is when the work must have ended, None when it may take as long as it likes.
    """

    correlation_id: str = ""
    attempt: int = 1
    fencing_token: int = 0
    lease_lost: threading.Event = field(default_factory=threading.Event, repr=False, compare=False)
    deadline: datetime | None = None
    _beat: Callable[[JsonValue], None] = field(default=_no_heartbeat, repr=False, compare=False)
    _transaction: HandlerTransaction | AsyncTransaction | None = field(default=None, repr=False, compare=False)
    _no_transaction: str = field(default=NO_TRANSACTION, repr=False, compare=False)

    def heartbeat(self, progress: JsonValue = None) -> None:
        """Extend the lease now, and say how far the work is. Beats are sent anyway while the handler runs.

        Raises:
            LostLeaseError: the lease is someone else's by now.
        """
        self._beat(progress)

    def progress(self, value: JsonValue) -> None:
        """Say how far the work is, for whoever looks.

        Raises:
            LostLeaseError: the lease is someone else's by now.
        """
        self._beat(value)

    @property
    def transaction(self) -> Any:
        """Return a connection whose transaction commits together with the record that the work is done.

        It is a SQLAlchemy ``Connection``, opened on first use; in ``async def`` handlers its methods are awaited.

        Raises:
            ConfigurationError: there is none here; the message says why.
        """
        if self._transaction is None:
            raise ConfigurationError(self._no_transaction)
        if isinstance(self._transaction, HandlerTransaction):
            return self._transaction.connection
        return self._transaction


def lent_to(transaction: HandlerTransaction | None, *, is_async: bool) -> HandlerTransaction | AsyncTransaction | None:
    """Return a transaction with the face that the handler needs: as it is, or awaited."""
    return AsyncTransaction(transaction) if is_async and transaction is not None else transaction
