"""Wakes a worker when PostgreSQL says that there are jobs, or that one is cancelled."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy.engine import Engine

from ..runtime.listener import Subscription, listen
from .stores.base import CANCELLED

CHANNEL = "holdfast_jobs"


class Listener:
    """Listens on the process's shared connection. While it cannot, the worker's poll does."""

    def __init__(
        self,
        engine: Engine,
        topics: frozenset[str],
        *,
        on_jobs: Callable[[], None],
        on_cancel: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._topics = topics
        self._on_jobs = on_jobs
        self._on_cancel = on_cancel
        self._subscription: Subscription | None = None

    def start(self) -> None:
        """Begin to listen."""
        self._subscription = listen(self._engine, CHANNEL, self._heard)

    def stop(self) -> None:
        """End."""
        if self._subscription is not None:
            self._subscription.close()

    @property
    def is_alive(self) -> bool:
        """Return whether it still listens, or tries to."""
        return self._subscription is None or self._subscription.listener.is_alive

    def _heard(self, payload: str | None) -> None:
        if payload == CANCELLED:
            self._on_cancel()
        elif payload is None or payload in self._topics:
            self._on_jobs()
