"""Who works here, and on what: a row that a worker refreshes, so that jobs nobody can run can be shown."""

from __future__ import annotations

import logging
import math
import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence

from ..core.clock import Clock, new_id
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
        self._announced: Operations | None = None
        self._announced_at = -math.inf

    def tick(self) -> float:
        """Announce it when it is news, or was announced long ago; return in how many seconds to look again."""
        operations, now = self._operations(), self._clock.monotonic()
        if operations != self._announced or now - self._announced_at >= ANNOUNCE_SECONDS:
            self._store.announce(self._worker, operations)
            self._announced, self._announced_at = operations, now
        return self._look_seconds

    def withdraw(self) -> None:
        """Take back that the worker is there. It does not matter if that fails: the row ages."""
        try:
            self._store.withdraw(self._worker)
        except DbError as error:
            _log.info("Worker %s is listed a while longer: %s", self._worker, error)


class Listed:
    """A part of a process that does not take its work from the database, and is listed among its workers all the same.

    What cannot be written is logged once and tried again: a worker works whether or not it is listed.
    """

    title = "The entry in the list of workers"

    def __init__(self, store: WorkerStore, operations: Operations, stop: threading.Event, clock: Clock) -> None:
        worker = WorkerId(f"{socket.gethostname()}-{os.getpid()}-{new_id(8)}")
        self._announcement = Announcement(store, worker, lambda: operations, clock)
        self._stop = stop
        self._clock = clock
        self._is_announced = False

    def run(self) -> bool:
        """Be listed until the process is to stop. If it dies, the entry ages and counts no more."""
        while not self._stop.is_set():
            self._clock.wait(self._stop, self._tick())
        self._announcement.withdraw()
        return True

    def stopping(self) -> None:
        """Nothing to do: the event is looked at."""

    def give_up(self) -> None:
        """Nothing to do: the entry ages."""

    def _tick(self) -> float:
        try:
            return self._announcement.tick()
        except DbError as error:
            if not self._is_announced:
                _log.warning("This worker is not listed by 'holdfast workers': %s", error)
            self._is_announced = True
            return ANNOUNCE_SECONDS
