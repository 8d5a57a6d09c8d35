"""Wakes a worker when PostgreSQL says that there is something to do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from sqlalchemy.engine import Engine
from sqlalchemy.exc import SQLAlchemyError

from ..core.clock import Clock
from .stores.base import CANCELLED

CHANNEL = "holdfast_jobs"
_LOOK_AROUND_SECONDS = 0.5
_AFTER_ERROR_SECONDS = 1.0
_STOP_SECONDS = 5.0


class Listener:
    """Listens on a connection of its own. While it cannot, the worker's poll does."""

    def __init__(
        self,
        engine: Engine,
        topics: frozenset[str],
        clock: Clock,
        *,
        on_jobs: Callable[[], None],
        on_cancel: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._topics = topics
        self._clock = clock
        self._on_jobs = on_jobs
        self._on_cancel = on_cancel
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-jobs-listener", daemon=True)

    def start(self) -> None:
        """Begin to listen."""
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Return whether it still listens, or tries to."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """End."""
        self._stop.set()
        self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._listen()
            except (SQLAlchemyError, self._engine.dialect.loaded_dbapi.Error):
                self._clock.wait(self._stop, _AFTER_ERROR_SECONDS)

    def _listen(self) -> None:
        connection = self._engine.connect()
        driver: Any = connection.connection.driver_connection
        connection.detach()
        try:
            driver.autocommit = True
            driver.execute(f"LISTEN {CHANNEL}")
            self._on_jobs()  # whatever came while nobody listened
            while not self._stop.is_set():
                for note in driver.notifies(timeout=_LOOK_AROUND_SECONDS, stop_after=1):
                    self._heard(note.payload)
        finally:
            with suppress(SQLAlchemyError):
                connection.close()

    def _heard(self, payload: str) -> None:
        if payload == CANCELLED:
            self._on_cancel()
        elif payload in self._topics:
            self._on_jobs()
