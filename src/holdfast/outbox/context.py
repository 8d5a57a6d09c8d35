"""What a processor's handler is told about the delivery it is part of."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..core.errors import ConfigurationError
from ..core.handler_transaction import AsyncTransaction, HandlerTransaction
from ..core.types import JsonValue
from .message import Checkpoint


def _no_heartbeat(progress: JsonValue) -> None:
    """Stand in where a context was built by hand, as in a test."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorContext:
    """The context of one delivery.

    ``checkpoint`` is what the processor has passed when this batch commits. ``attempt`` counts the tries of this batch
    in this process, from 1. ``is_active`` is False for a version that only runs beside the one in use: leave effects on
    the outside world to that one. ``fencing_token`` grows with every holder: pass it to systems that can refuse a lower
    one.
    """

    processor_id: str
    version: int = 1
    partition: int = 0
    correlation_id: str = ""
    checkpoint: Checkpoint | None = None
    attempt: int = 1
    is_active: bool = True
    fencing_token: int = 0
    lease_lost: threading.Event = field(default_factory=threading.Event, repr=False, compare=False)
    _beat: Callable[[JsonValue], None] = field(default=_no_heartbeat, repr=False, compare=False)
    _transaction: HandlerTransaction | AsyncTransaction | None = field(default=None, repr=False, compare=False)

    def heartbeat(self, progress: JsonValue = None) -> None:
        """Extend the lease now and say how far the work is. Beats are sent anyway while the handler runs.

        Raises:
            LostLeaseError: the lease is someone else's by now.
        """
        self._beat(progress)

    @property
    def transaction(self) -> Any:
        """Return the connection whose transaction commits together with the checkpoint.

        In ``async def`` handlers its methods are awaited.

        Raises:
            ConfigurationError: the processor was declared with ``transactional=False``.
        """
        if self._transaction is None:
            raise ConfigurationError(
                f"context.transaction is not there: processor '{self.processor_id}' was declared with "
                "transactional=False, so its checkpoint is stored after the handler. Leave that out to have both in "
                "one transaction."
            )
        if isinstance(self._transaction, HandlerTransaction):
            return self._transaction.connection
        return self._transaction
