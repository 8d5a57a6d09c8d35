"""A pool of fixed size that knows who holds its connections, and says so when others wait for one."""

from __future__ import annotations

import logging
import threading
from typing import Any

from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.pool import ConnectionPoolEntry, QueuePool

from ..core.clock import SystemClock
from .budget import PoolConfig, PoolName
from .connection_slots import LONG_WAIT_SECONDS, Slots
from .errors import NoFreeConnectionError

_clock = SystemClock()
_log = logging.getLogger("holdfast")


class BoundedPool(QueuePool):
    """A named pool. No more connections are open at once than it has places; who wants another waits.

    Args:
        named: the pool's name and budget.
        timeout: how many seconds to wait for a connection at most.
    """

    def __init__(self, creator: Any, named: PoolConfig, timeout: float = 30.0, **options: Any) -> None:
        options |= {"pool_size": named.size, "max_overflow": 0}
        super().__init__(creator, timeout=min(timeout, LONG_WAIT_SECONDS), **options)
        self.named = named
        self._patience_seconds = timeout
        self._holders: dict[ConnectionPoolEntry, tuple[str, float]] = {}
        most = named.size - 1 if named.pool is PoolName.HANDLERS else named.size
        self.transactions = Slots(max(1, most), self.log_long_wait)
        """Places for handlers' transactions: all but one, so that reading and ``hf.database`` go on beside them."""

    def recreate(self) -> BoundedPool:
        """Return a pool like it, without connections."""
        return type(self)(
            self._creator,
            named=self.named,
            timeout=self._patience_seconds,
            pre_ping=self._pre_ping,
            use_lifo=self._pool.use_lifo,
            recycle=self._recycle,
            echo=self.echo,
            logging_name=self._orig_logging_name,
            reset_on_return=self._reset_on_return,
            _dispatch=self.dispatch,
            dialect=self._dialect,
        )

    def _do_get(self) -> ConnectionPoolEntry:
        asked_at = _clock.monotonic()
        was_logged = False
        while True:
            try:
                entry = super()._do_get()
                self._holders[entry] = (threading.current_thread().name, _clock.monotonic())
                return entry
            except PoolTimeoutError as error:
                if _clock.monotonic() - asked_at >= self._patience_seconds:
                    raise NoFreeConnectionError(self._refusal()) from error
                if not was_logged:
                    was_logged = True
                    self.log_long_wait()

    def _do_return_conn(self, record: ConnectionPoolEntry) -> None:
        self._holders.pop(record, None)
        super()._do_return_conn(record)

    def log_long_wait(self) -> None:
        """Say that this thread has waited for long, and for whom."""
        _log.warning(
            "%s has waited for %g s for a connection of the pool '%s', which has %d (max_connections=%d). They are "
            "held by %s",
            threading.current_thread().name,
            LONG_WAIT_SECONDS,
            self.named.pool,
            self.size(),
            self.named.budget.max_connections,
            self.shown_holders(),
        )

    def shown_holders(self) -> str:
        """Return which threads took the connections that are in use, and how long ago."""
        now = _clock.monotonic()
        holders = sorted(self._holders.values(), key=lambda each: each[1])
        return ", ".join(f"{name} ({now - since:.1f} s)" for name, since in holders) or "nobody any more"

    def _refusal(self) -> str:
        return (
            f"all {self.size()} of the pool '{self.named.pool}' were in use for {self._patience_seconds:g} s "
            f"(max_connections={self.named.budget.max_connections}); they are held by {self.shown_holders()}. Raise "
            "max_connections, or hold connections for a shorter time."
        )
