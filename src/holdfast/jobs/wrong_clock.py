"""The queue after its database's clock was far ahead for a moment: what was written then does not hold work up.

A lease would end in years, a retry be due then, a unique key be taken until then. Each worker process looks every few
minutes, as it looks for jobs that ended long ago. What users have chosen, such as the day of a job's run, stays.
"""

from __future__ import annotations

from ..core.clock import Clock
from ..core.moments_ahead import MomentsAhead
from .stores.base import SqlJobStore

_LOOK_SECONDS = 300.0
_AGAIN_SECONDS = 60.0


class QueueMoments:
    """Takes back moments of the queue that lie ahead."""

    def __init__(self, store: SqlJobStore, clock: Clock) -> None:
        self._store = store
        self._ahead = MomentsAhead(clock)

    def look(self) -> float:
        """Look once; return in how many seconds to look again. If the process dies here, another looks."""
        furthest, now = self._store.furthest_ahead()
        if furthest is None:
            return _LOOK_SECONDS
        what, remedy = "a moment that it wrote", "its leases, retries, unique keys and turns count from now"
        if self._ahead.is_wrong("the queue of jobs", furthest, now, what=what, remedy=remedy):
            self._store.take_moments_back()
            return _LOOK_SECONDS
        return _AGAIN_SECONDS
