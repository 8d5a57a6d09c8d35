"""What engines tell about themselves: logs and metrics, around the flow and not inside it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ..core.clock import Clock
from ..core.errors import DbError
from ..core.telemetry import MetricsCollector, SafeCollector
from .runner import Outcome

_log = logging.getLogger("holdfast.engines")
DELIVERIES = "holdfast_engine_deliveries_total"
DURATION_MS = "holdfast_engine_duration_ms"
FAILURES = "holdfast_engine_worker_failures_total"
PENDING = "holdfast_engine_dead_letters_pending"


@dataclass(slots=True)
class Delivery:
    """What became of a delivery; None until that is known."""

    outcome: Outcome | None = None


class EngineTelemetry:
    """Logs and counts what engines do."""

    def __init__(self, metrics: MetricsCollector | None, clock: Clock) -> None:
        self._metrics = SafeCollector(metrics)
        self._clock = clock

    @contextmanager
    def delivery(self, engine: str) -> Iterator[Delivery]:
        """Count a delivery by what became of it, and tell how long it took."""
        started = self._clock.monotonic()
        delivery = Delivery()
        yield delivery
        if delivery.outcome is not None:
            labels = {"engine": engine, "outcome": delivery.outcome.value}
            self._metrics.increment(DELIVERIES, labels=labels)
            duration = (self._clock.monotonic() - started) * 1000
            self._metrics.observe(DURATION_MS, duration, labels=labels)

    def pending(self, engine: str, letters: int) -> None:
        """Measure how many dead letters wait for a person."""
        self._metrics.set_gauge(PENDING, letters, labels={"engine": engine})

    def wrong(self, engine: str, error: DbError) -> None:
        """Log that an engine takes no message until somebody mends what is wrong."""
        self._metrics.increment(FAILURES, labels={"engine": engine, "error_type": type(error).__name__})
        _log.error("Engine '%s' does not run until that is mended: %s", engine, error)

    def mended(self, engine: str) -> None:
        """Log that an engine takes messages again."""
        _log.info("Engine '%s' can run again", engine)

    def broke(self, engine: str, error: Exception) -> None:
        """Log that a worker could not go on with a message: it comes again."""
        labels = {"engine": engine, "error_type": type(error).__name__}
        self._metrics.increment(FAILURES, labels=labels)
        if isinstance(error, DbError):
            _log.warning("Engine '%s' waits and goes on: %s", engine, error)
        else:
            _log.error("Engine '%s' waits and goes on after an error of its own", engine, exc_info=error)
