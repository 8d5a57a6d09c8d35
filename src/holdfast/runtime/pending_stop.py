"""A stop that has to be written: until it is, whoever may not go on must not deliver the same again.

A handler that ended its transaction itself may have kept a part of its effects. If the write that stops its workload
fails, it is tried again while the lease is ours, and remembered beyond it: the next thing this process does is to stop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ..core.clock import Clock
from ..core.errors import LostLeaseError
from ..lease.held_lease import HeldLease

_AGAIN_SECONDS = 0.2
_log = logging.getLogger("holdfast")


class PendingStop:
    """Why a workload has to stop, as long as that is not written."""

    def __init__(self, title: str, clock: Clock) -> None:
        self._title = title
        self._clock = clock
        self.reason: str | None = None

    def write(self, reason: str, lease: HeldLease, stop: Callable[[str], object]) -> None:
        """Write a stop, again and again while the lease is ours, for the time of one lease at most.

        If the process dies before it is written, whoever takes over delivers the same again.

        Raises:
            LostLeaseError: someone else holds the lease.
            Exception: what ``stop`` raised last; the reason is remembered.
        """
        self.reason = reason
        until = self._clock.monotonic() + lease.ttl_seconds
        while not self._is_written(reason, stop, is_last=lease.lost.is_set() or self._clock.monotonic() >= until):
            self._clock.wait(lease.lost, _AGAIN_SECONDS)
        self.reason = None

    def _is_written(self, reason: str, stop: Callable[[str], object], *, is_last: bool) -> bool:
        try:
            stop(reason)
        except LostLeaseError:
            raise
        except Exception as error:
            if is_last:
                raise
            _log.warning("%s has to stop, which could not be written and is tried again: %s", self._title, error)
            return False
        return True
