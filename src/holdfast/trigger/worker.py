"""Runs triggers until told to stop: keeps each lease between polls, stands by while another worker holds it, drains.

One thread per trigger. An error never ends a trigger: it is logged, and the trigger tries again with growing pauses.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from ..core.clock import Clock, SystemClock
from ..core.errors import LeaseConflictError
from ..core.retry import RetryPolicy
from .runner import PollRunner

_AFTER_ERRORS = RetryPolicy(max_retries=0, base_delay_seconds=0.5, max_delay_seconds=30.0)


@dataclass(frozen=True, slots=True)
class WorkerTrigger:
    """A trigger in a worker: what runs it, and how long it rests when there is nothing to do."""

    runner: PollRunner
    poll_seconds: float = 1.0


class TriggerWorker:
    """Runs several triggers in one process."""

    def __init__(
        self,
        triggers: Sequence[WorkerTrigger],
        stop: threading.Event,
        *,
        clock: Clock | None = None,
        drain_seconds: float = 30.0,
    ) -> None:
        self._triggers = triggers
        self._stop = stop
        self._clock = clock or SystemClock()
        self._drain_seconds = drain_seconds

    def run(self) -> bool:
        """Run until ``stop`` is set, then let running handlers finish; return whether they all did in time.

        No batch is started after ``stop``. A handler that outlives the drain time keeps its lease until the process
        ends; then the lease frees itself, and its batch is delivered again.
        """
        threads = [
            threading.Thread(
                target=self._keep_running, args=(trigger,), name=f"trigger-{trigger.runner.name}", daemon=True
            )
            for trigger in self._triggers
        ]
        for thread in threads:
            thread.start()
        self._stop.wait()
        deadline = self._clock.monotonic() + self._drain_seconds
        for thread in threads:
            thread.join(timeout=max(0.0, deadline - self._clock.monotonic()))
        return not any(thread.is_alive() for thread in threads)

    def _keep_running(self, trigger: WorkerTrigger) -> None:
        failures = 0
        while not self._stop.is_set():
            try:
                self._run_leased(trigger)
                failures = 0
            except LeaseConflictError:
                failures = 0
                self._clock.wait(self._stop, trigger.poll_seconds)
            except Exception:  # logged by the runner's telemetry; a trigger outlives every error
                self._clock.wait(self._stop, _AFTER_ERRORS.delay_for_attempt(failures))
                failures += 1

    def _run_leased(self, trigger: WorkerTrigger) -> None:
        with trigger.runner.leased() as lease:
            while not self._stop.is_set() and not lease.lost.is_set():
                if trigger.runner.process_batch(lease).caught_up:
                    self._clock.wait(self._stop, trigger.poll_seconds)
