"""Claims for the streams. Runs on threads: a claim waits for the database."""

from __future__ import annotations

from ...core.clock import Clock
from ..announcement import Operations
from ..claiming import Claiming
from ..model import ClaimedJob, WorkerId
from ..stores.base import SqlJobStore
from .suspects import StreamSuspects


class StreamClaims:
    """Claims what a worker has announced, or any operation of a topic where it has not."""

    def __init__(self, store: SqlJobStore, claiming: Claiming, server: WorkerId, clock: Clock) -> None:
        self._store = store
        self._claiming = claiming
        self._server = server
        self._clock = clock

    def connected(self, owner: WorkerId) -> None:
        """Note that a worker is served here now."""
        self._store.remote_worker(owner, self._server)

    def suspects_of(self, owner: WorkerId, announced: Operations, worker_tests: bool) -> StreamSuspects:
        """Return the tests of a worker's stream."""
        return StreamSuspects(self._store, owner, announced, self._clock, worker_tests=worker_tests)

    def claim(self, owner: WorkerId, announced: Operations, capacity: int) -> list[ClaimedJob]:
        """Claim up to ``capacity`` jobs.

        Raises:
            Unavailable, Ambiguous: what is ready in a topic could not be read; nothing was claimed.
        """
        wanted = {
            topic: self._store.ready_operations(topic) if operations is None else operations
            for topic, operations in announced.items()
        }
        return [job for jobs in self._claiming.claim(owner, wanted, capacity) for job in jobs]
