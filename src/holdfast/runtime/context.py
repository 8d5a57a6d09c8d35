"""What every handler learns about the work it is part of, and what it may do with it, whatever the workload."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

from ..core.blocking_calls import on_own_thread
from ..core.errors import Ambiguous, ConfigurationError, Unavailable
from ..core.types import JsonValue
from .async_transaction import AsyncTransaction
from .transaction import HandlerTransaction

MOST_PROGRESS_BYTES = 1024 * 1024
NO_TRANSACTION = (
    "context.transaction is not available here: what records this work as done is not kept in a SQL database, so the "
    "handler's writes cannot commit together with it. Keep it in SQL, or make the handler idempotent."
)


def _no_heartbeat(progress: JsonValue) -> None:
    """Stand in where a context was built by hand, as in a test."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HandlerContext:
    """The context of one piece of work.

    ``attempt`` counts the tries, from 1. ``fencing_token`` grows with every holder: pass it to systems that can refuse
    a lower one. ``lease_lost`` is set when another worker may have taken over: stop when convenient, nothing will be
    recorded. ``deadline`` is when the work must have ended, by ``max_seconds`` (jobs) or ``tick_deadline_seconds``
    (triggers); None when it may take as long as it likes, as what processors and engines handle always may.
    """

    correlation_id: str = ""
    attempt: int = 1
    fencing_token: int = 0
    lease_lost: threading.Event = field(default_factory=threading.Event, repr=False, compare=False)
    deadline: datetime | None = None
    _beat: Callable[[JsonValue], None] = field(default=_no_heartbeat, repr=False, compare=False)
    _is_async: bool = field(default=False, repr=False, compare=False)
    _transaction: HandlerTransaction | AsyncTransaction | None = field(default=None, repr=False, compare=False)
    _no_transaction: str = field(default=NO_TRANSACTION, repr=False, compare=False)

    def heartbeat(self, progress: JsonValue = None) -> Any:
        """Extend the lease now, and say how far the work is; awaited in ``async def`` handlers.

        Beats are sent anyway while the handler runs: this reports progress. Nothing is sent while the store does not
        answer, nor on SQLite while ``context.transaction`` is open: it holds the write lock.

        Raises:
            ConfigurationError: the progress is not JSON, or larger than a mebibyte.
            LostLeaseError: the lease is someone else's by now.
            JobCancelled: it is a job, and someone cancelled it.
        """
        _check_progress(progress)
        return self._beat_off_loop(progress) if self._is_async else self._beat_if_possible(progress)

    def progress(self, value: JsonValue) -> Any:
        """Say how far the work is, as ``heartbeat(progress=…)`` does; awaited in ``async def`` handlers."""
        return self.heartbeat(value)

    async def _beat_off_loop(self, progress: JsonValue) -> None:
        await on_own_thread(partial(self._beat_if_possible, progress))

    def _beat_if_possible(self, progress: JsonValue) -> None:
        with suppress(Unavailable, Ambiguous):  # telling progress is worth no attempt; the process's own beats go on
            self._beat(progress)

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


def _check_progress(progress: object) -> None:
    """Refuse what could not be kept, before it is on its way with what others say."""
    if progress is None:
        return
    try:
        size = len(json.dumps(progress, ensure_ascii=False, allow_nan=False).encode("utf-8", "surrogatepass"))
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(
            f"The progress cannot be kept as JSON: {error}. Pass numbers, texts, lists and dicts of them."
        ) from error
    if size > MOST_PROGRESS_BYTES:
        raise ConfigurationError(
            f"The progress has {size:,} bytes, and at most {MOST_PROGRESS_BYTES:,} are kept. Say how far the work is, "
            "and keep its data elsewhere."
        )


def lent_to(transaction: HandlerTransaction | None, *, is_async: bool) -> HandlerTransaction | AsyncTransaction | None:
    """Return a transaction with the face that the handler needs: as it is, or awaited."""
    return AsyncTransaction(transaction) if is_async and transaction is not None else transaction
