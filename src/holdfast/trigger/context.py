"""What a handler is told about the delivery it is part of, and what it may do with it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ..core.handler_transaction import AsyncTransaction, HandlerTransaction
from ..core.types import JsonValue
from .transaction import no_transaction


def _no_heartbeat(progress: JsonValue) -> None:
    """Stand in where a context was built by hand, as in a test."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PollContext:
    """The context of one delivery.

    ``attempt`` counts the tries of this batch in this run, from 1. ``lease_lost`` is set when another worker may have
    taken over: stop when convenient, nothing will be committed. ``fencing_token`` grows with every holder: pass it
    to systems that can refuse a lower one.
    """

    poller_name: str
    invocation_id: str
    batch_id: str
    lease_owner: str
    checkpoint_before: dict[str, object]
    checkpoint_after_candidate: dict[str, object] | None
    tick_started_at: datetime
    source_name: str
    correlation_id: str = ""
    fencing_token: int = 0
    attempt: int = 1
    lease_lost: threading.Event = field(default_factory=threading.Event, repr=False, compare=False)
    _beat: Callable[[JsonValue], None] = field(default=_no_heartbeat, repr=False, compare=False)
    _transaction: HandlerTransaction | AsyncTransaction | None = field(default=None, repr=False, compare=False)

    def heartbeat(self, progress: JsonValue = None) -> None:
        """Extend the lease now and say how far the work is; ``holdfast trigger show`` displays it.

        Beats are sent anyway while the handler runs: this is for telling progress.

        Raises:
            LostLeaseError: the lease is someone else's by now.
        """
        self._beat(progress)

    @property
    def transaction(self) -> Any:
        """Return a connection whose transaction commits together with the checkpoint, opened on first use.

        In ``async def`` handlers its methods are awaited.

        Raises:
            ConfigurationError: the checkpoint is not kept in SQL.
        """
        if self._transaction is None:
            raise no_transaction()
        if isinstance(self._transaction, HandlerTransaction):
            return self._transaction.connection
        return self._transaction
