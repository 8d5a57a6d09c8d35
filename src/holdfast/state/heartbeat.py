"""Keeps a lease alive beside a handler that may take far longer than the lease's time to live."""

from __future__ import annotations

import logging
import threading
from types import TracebackType

from ..core.clock import Clock
from ..core.errors import ConfigurationError, LostLeaseError, StateStoreError
from .lease import Renewable

_JOIN_SECONDS = 1.0
_LEAST_WATCH_SECONDS = 0.05
_log = logging.getLogger("holdfast.state")


def checked_interval(interval_seconds: float | None, ttl_seconds: float) -> float:
    """Return the interval between beats: a third of the time to live unless told otherwise.

    Raises:
        ConfigurationError: it is not below half the time to live, so one late beat could lose the lease.
    """
    if interval_seconds is None:
        return ttl_seconds / 3
    if not 0 < interval_seconds < ttl_seconds / 2:
        raise ConfigurationError(
            f"heartbeat_interval_seconds={interval_seconds:g} must be above 0 and below half of the lease's "
            f"{ttl_seconds:g} s: use {ttl_seconds / 3:g} or less."
        )
    return interval_seconds


class Heartbeat:
    """A context manager: while it is open, a thread beats; when beating fails for good, the lease is marked lost.

    A commit extends the lease too, so a beat is only written when nothing else was for one interval. A second thread
    looks at the clock alone: a store that takes a write and never answers must not keep us believing in our lease.
    """

    def __init__(
        self, lease: Renewable, clock: Clock, *, interval_seconds: float | None = None, max_failures: int = 5
    ) -> None:
        self._lease = lease
        self._clock = clock
        self._interval = checked_interval(interval_seconds, lease.ttl_seconds)
        self._max_failures = max_failures
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=target, name=f"holdfast-{name}", daemon=True)
            for name, target in (("heartbeat", self._run), ("lease-watch", self._watch))
        ]

    def __enter__(self) -> Heartbeat:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=_JOIN_SECONDS)

    def _run(self) -> None:
        failures = 0
        while not self._clock.wait(self._stop, self._pause(failures)):
            if self._lease.lost.is_set():
                return
            if not failures and self._lease.seconds_since_renewal() < self._interval:
                continue
            failures = 0 if self._beat() else failures + 1
            if failures >= self._max_failures or (failures and self._lease.seconds_left() <= 0):
                self._lease.mark_lost()

    def _watch(self) -> None:
        """Mark the lease lost when its usable time has passed without a renewal that was answered."""
        while not self._clock.wait(self._stop, max(_LEAST_WATCH_SECONDS, self._lease.seconds_left())):
            if not self._lease.is_protected and self._lease.seconds_left() <= 0:
                self._lease.mark_lost()
                return

    def _pause(self, failures: int) -> float:
        if self._lease.is_protected:
            return self._interval / 4
        if failures:
            return min(self._interval / 4, max(0.0, self._lease.seconds_left()))
        return max(0.01, self._interval - self._lease.seconds_since_renewal())

    def _beat(self) -> bool:
        try:
            self._lease.heartbeat(wait_seconds=max(0.0, self._lease.seconds_left()))
        except LostLeaseError:
            self._lease.mark_lost()
        except StateStoreError:
            return False
        except Exception:  # a store of the user's own may raise anything; a beat that failed is no beat
            _log.exception("A heartbeat failed unexpectedly")
            return False
        return True
