"""Who works here, and on what: a row that a worker refreshes, so that jobs nobody can run can be shown."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence

from ..core.clock import Clock
from ..core.errors import DbError
from .model import WorkerId
from .stores.base import ANNOUNCE_SECONDS
from .stores.protocol import WorkerStore

_log = logging.getLogger("holdfast.jobs")
Operations = Mapping[str, Sequence[str] | None]


class Announcement:
    """Tells what a worker can run, now and then. When the process dies, the row ages and counts no more.

    Args:
        operations: what it can run, by topic; None for any operation of a topic.
        look_seconds: how often to look whether that has changed.
    """

    def __init__(
        self,
        store: WorkerStore,
        worker: WorkerId,
        operations: Callable[[], Operations],
        clock: Clock,
        *,
        look_seconds: float = ANNOUNCE_SECONDS,
    ) -> None:
        self._store = store
        self._worker = worker
        self._operations = operations
        self._clock = clock
        self._look_seconds = look_seconds
        self._told: Operations | None = None
        self._told_at = -math.inf

    def tick(self) -> float:
        """Tell it when it is news, or was told long ago; return in how many seconds to look again."""
        operations, now = self._operations(), self._clock.monotonic()
        if operations != self._told or now - self._told_at >= ANNOUNCE_SECONDS:
            self._store.announce(self._worker, operations)
            self._told, self._told_at = operations, now
        return self._look_seconds

    def withdraw(self) -> None:
        """Tell that the worker stops. It does not matter if nobody hears it: the row ages."""
        try:
            self._store.withdraw(self._worker)
        except DbError as error:
            _log.info("Worker %s is listed a while longer: %s", self._worker, error)
