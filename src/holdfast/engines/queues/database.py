"""The embedded queues of engines: the jobs table of the application's database."""

from __future__ import annotations

from collections.abc import Callable

from ...jobs.stores.base import SqlJobStore
from .embedded import EmbeddedQueue


class DatabaseQueues:
    """Queues in the jobs table."""

    def __init__(self, store: Callable[[], SqlJobStore]) -> None:
        self._store = store

    @property
    def store(self) -> SqlJobStore:
        """Return where they are."""
        return self._store()

    def queue(self, name: str, visibility_seconds: float) -> EmbeddedQueue:
        """Return a queue."""
        return EmbeddedQueue(self._store(), name, visibility_seconds)

    def poison(self, name: str) -> None:
        """Return none: no host moves messages of these queues away."""

    def make(self, name: str) -> None:
        """Nothing to do: a queue is a topic."""

    def check(self, name: str) -> None:
        """Nothing to do: the tables are checked by whoever starts."""
