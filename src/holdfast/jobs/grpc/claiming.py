"""Claims for the streams. Runs on threads: a claim waits for the database."""

from __future__ import annotations

from collections.abc import Iterable

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
        return StreamSuspects(self._store, self._claiming, owner, announced, self._clock, worker_tests=worker_tests)

    def opens_in(self, topics: Iterable[str]) -> float:
        """Return in how many seconds a rate lets another job of some topics start, infinity when it keeps none."""
        return self._claiming.opens_in_seconds(topics)

    def claim(self, owner: WorkerId, announced: Operations, capacity: int, reports_begin: bool) -> list[ClaimedJob]:
        """Claim up to ``capacity`` jobs.

        What may run once counts as begun as soon as it is sent to a worker that does not tell when it begins [ONCE-1].

        Raises:
            Unavailable, Ambiguous: what is ready in a topic could not be read, and nothing was claimed; or what was
                claimed must not be sent, and comes back when its lease runs out.
        """
        wanted = {
            topic: self._store.ready_operations(topic) if operations is None else operations
            for topic, operations in announced.items()
        }
        claimed = [job for jobs in self._claiming.claim(owner, wanted, capacity) for job in jobs]
        once = [] if reports_begin else [job.claim for job in claimed if job.max_attempts == 1]
        if once:
            self._store.may_have_begun(owner, once)
        return claimed
