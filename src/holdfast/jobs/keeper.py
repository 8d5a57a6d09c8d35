"""Keeps what this worker holds, then looks after what others have let go: beats, and the watchdog.

Both are on one thread with a connection of their own, so that neither handlers nor their pools can hold up a beat. The
beat comes first: a worker that was stopped for a while must not reap itself while it still could have gone on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from ..core.clock import Clock
from ..core.errors import Ambiguous, Unavailable
from .model import WorkerId
from .running import InFlight, Running
from .stores.protocol import WorkerStore
from .telemetry import WorkerTelemetry

_REAP_AT_ONCE = 1000
_USABLE_LEASE = 0.9
_AFTER_FAILED_BEAT = 0.25
_STOP_SECONDS = 5.0


class Keeper:
    """One statement per interval for all jobs in flight, and a look for leases that ran out anywhere.

    Args:
        is_live: whether a job can still make progress here; nobody beats for one whose thread has died.
    """

    def __init__(
        self,
        store: WorkerStore,
        worker: WorkerId,
        in_flight: InFlight,
        telemetry: WorkerTelemetry,
        clock: Clock,
        *,
        beat_seconds: float,
        watchdog_seconds: float,
        on_reaped: Callable[[], None],
        before_reap: Callable[[], None] = lambda: None,
        is_live: Callable[[Running], bool] = lambda running: True,
    ) -> None:
        self._store = store
        self._worker = worker
        self._in_flight = in_flight
        self._telemetry = telemetry
        self._clock = clock
        self._beat_seconds = beat_seconds
        self._watchdog_seconds = watchdog_seconds
        self._on_reaped = on_reaped
        self._before_reap = before_reap
        self._is_live = is_live
        self._wake = threading.Event()
        self._is_stopped = False
        self._reap_at = clock.monotonic()
        self._thread = threading.Thread(target=self._run, name="holdfast-jobs-keeper", daemon=True)

    def start(self) -> None:
        """Begin to beat."""
        self._thread.start()

    def stop(self) -> None:
        """End. Leases run out from now on."""
        self._is_stopped = True
        self._wake.set()
        self._thread.join(_STOP_SECONDS)

    @property
    def is_alive(self) -> bool:
        """Return whether beats are still sent."""
        return self._thread.is_alive()

    def beat_now(self) -> None:
        """Do not wait for the next interval: someone may have cancelled a job."""
        self._wake.set()

    def expect_lease(self, seconds: float) -> None:
        """Beat often enough for a lease this short."""
        if seconds / 3 < self._beat_seconds:
            self._beat_seconds = seconds / 3
            self._wake.set()

    def _run(self) -> None:
        pause = 0.0
        while True:
            self._clock.wait(self._wake, pause)
            self._wake.clear()
            if self._is_stopped:
                return
            has_beaten = self.beat()
            pause = self._beat_seconds if has_beaten else self._beat_seconds * _AFTER_FAILED_BEAT
            if has_beaten and self._clock.monotonic() >= self._reap_at:
                self._reap_at = self._clock.monotonic() + self._watchdog_seconds
                self.reap()
            pause = max(0.01, min(pause, self._reap_at - self._clock.monotonic()))

    def beat(self) -> bool:
        """Extend every lease; return whether the database answered."""
        held = [running for running in self._in_flight.all() if not running.is_taken and self._is_live(running)]
        if not held:
            return True
        asked_at = self._clock.monotonic()
        try:
            answer = self._store.heartbeat(self._worker, [running.claim for running in held])
        except (Unavailable, Ambiguous) as error:
            self._telemetry.unavailable("A heartbeat", error)
        except Exception:
            self._telemetry.broke("A heartbeat")
        else:
            for running in held:
                if running.claim in answer:
                    running.extended_at = asked_at
                    self._pass_on_cancel(running, answer[running.claim])
                elif not running.is_reported:
                    self._telemetry.lost(running)
                    running.lose(is_certain=True)
            return True
        return False

    def _pass_on_cancel(self, running: Running, reason: str | None) -> None:
        if reason is not None and running.cancel_reason is None:
            running.cancel(reason)

    def lose_what_ran_out(self) -> None:
        """Take leases for lost that no beat has extended, shortly before others may reap them.

        Called from another thread: a beat that waits for an answer for ever must not hold this up.
        """
        now = self._clock.monotonic()
        for running in self._in_flight.all():
            is_open = running.locked_since is None and not running.is_reported and not running.is_lost
            if is_open and now - running.extended_at > running.job.lease_seconds * _USABLE_LEASE:
                self._telemetry.lost(running)
                running.lose(is_certain=False)

    def reap(self) -> None:
        """End attempts whose lease has passed, whoever's they were."""
        try:
            self._before_reap()
            while decided := self._store.reap(_REAP_AT_ONCE):
                self._telemetry.reaped(decided)
                self._on_reaped()
                if len(decided) < _REAP_AT_ONCE:
                    return
        except (Unavailable, Ambiguous) as error:
            self._telemetry.unavailable("The watchdog", error)
        except Exception:
            self._telemetry.broke("The watchdog")
