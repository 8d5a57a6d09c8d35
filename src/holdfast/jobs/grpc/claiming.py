"""Claims for the streams. Runs on threads: a claim waits for the database."""

from __future__ import annotations

from ..announcement import Operations
from ..claiming import Claiming
from ..model import ClaimedJob, WorkerId
from ..stores.base import SqlJobStore


class StreamClaims:
    """Claims what a worker has announced, or any operation of a topic where it has not."""

    def __init__(self, store: SqlJobStore, claiming: Claiming) -> None:
        self._store = store
        self._claiming = claiming

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
