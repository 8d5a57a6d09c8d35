"""What a server looks after: leases that ran out, jobs whose time has come, chores, and news from the database.

A fleet of remote workers may have no worker beside the database, so the server does what such a worker does besides
running handlers. Several servers and workers at once are harmless.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from sqlalchemy.engine import Engine

from ...core.clock import Clock
from ...runtime.housekeeping import Chore, Housekeeping
from ..listener import Listener
from ..model import WorkerId
from ..stores.base import CANCELLED, SqlJobStore
from ..telemetry import WorkerTelemetry
from ..watchdog import Watchdog

_LEAST_PAUSE_SECONDS = 0.02
_SEEN_SECONDS = 1.0
_STOP_SECONDS = 5.0


class TopicListener(Listener):
    """Tells of which topic there is news, whichever it is."""

    def __init__(
        self,
        engine: Engine,
        *,
        on_topic: Callable[[str | None], None],
        on_cancel: Callable[[], None],
    ) -> None:
        super().__init__(engine, frozenset(), on_jobs=lambda: on_topic(None), on_cancel=on_cancel)
        self._on_topic = on_topic

    def _heard(self, payload: str | None) -> None:
        if payload == CANCELLED:
            self._on_cancel()
        else:
            self._on_topic(payload)


class Watch:
    """Threads beside the server's loop.

    Args:
        store: the queue, on connections that claims do not use.
        on_topic: called from these threads: there may be jobs of this topic, or of any when it is None.
        on_cancel: called from these threads: running jobs were cancelled.
        on_suspects: called from these threads: suspects wait to be tested.
        chores: what else to do now and then.
    """

    def __init__(
        self,
        store: SqlJobStore,
        telemetry: WorkerTelemetry,
        clock: Clock,
        *,
        name: WorkerId,
        watchdog_seconds: float,
        poll_seconds: float,
        on_topic: Callable[[str | None], None],
        on_cancel: Callable[[], None],
        on_suspects: Callable[[], None],
        chores: Sequence[Chore] = (),
    ) -> None:
        self._on_suspects = on_suspects
        self._store = store
        self._telemetry = telemetry
        self._clock = clock
        self._poll_seconds = poll_seconds
        self._on_topic = on_topic
        self._name = name
        self._said_at = clock.monotonic() - _SEEN_SECONDS
        self._watchdog = Watchdog(
            store,
            telemetry,
            clock,
            seconds=watchdog_seconds,
            before=self._say_alive,  # so that the loss of a worker is not taken for the server's
            on_reaped=self._heard_any,
        )
        self._listener = (
            TopicListener(store.engine, on_topic=self._heard, on_cancel=on_cancel) if store.notifies else None
        )
        self._stop = threading.Event()
        housekeeping = Housekeeping(chores, self._stop, clock=clock)
        self._housekeeper = threading.Thread(target=housekeeping.run, name="holdfast-housekeeping", daemon=True)
        self._wake = threading.Event()
        self._promoter = threading.Thread(target=self._promote, name="holdfast-jobs-promoter", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._watchdog.start()
        self._housekeeper.start()
        self._promoter.start()
        if self._listener is not None:
            self._listener.start()

    def parts(self) -> dict[str, Callable[[], bool]]:
        """Return its threads, each with what returns whether it is alive."""
        listener = self._listener
        return {
            "the watchdog": lambda: self._watchdog.is_alive,
            "housekeeping": self._housekeeper.is_alive,
            "the promoter": self._promoter.is_alive,
            "the listener": lambda: listener is None or listener.is_alive,
        }

    def stop(self) -> None:
        """End."""
        self._stop.set()
        self._wake.set()
        self._promoter.join()
        self._housekeeper.join(_STOP_SECONDS)
        self._watchdog.stop()
        if self._listener is not None:
            self._listener.stop()

    def _heard_any(self) -> None:
        self._heard(None)

    def _heard(self, topic: str | None) -> None:
        self._wake.set()  # what came may be scheduled, and due before what was
        self._on_topic(topic)

    def _promote(self) -> None:
        while not self._stop.is_set():
            self._wake.clear()
            pause = self._poll_seconds
            try:
                pause = self._promoted()
            except Exception as error:
                self._telemetry.failing("Looking for jobs that are due", error)
            self._clock.wait(self._wake, pause)

    def _promoted(self) -> float:
        """Let what is due be claimed; return how long until something else may be."""
        if self._clock.monotonic() - self._said_at >= _SEEN_SECONDS:
            self._say_alive()
        if self._store.promote():
            self._on_topic(None)
        due = self._store.next_due()
        if due.has_suspects:
            self._on_suspects()
        if due.seconds is None:
            return self._poll_seconds
        return min(self._poll_seconds, max(_LEAST_PAUSE_SECONDS, due.seconds))

    def _say_alive(self) -> None:
        self._store.server_seen(self._name)
        self._said_at = self._clock.monotonic()
