"""Logs and metrics of a trigger, attached from outside: the runner says what it does, this says how it went."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime

from ..core import telemetry as names
from ..core.clock import Clock
from ..core.errors import DbError, LeaseConflictError
from ..core.telemetry import MetricsCollector, NoOpCollector
from ..core.types import JsonObject

_log = logging.getLogger("holdfast.trigger")
_HELD_BACK_WARNING_SECONDS = 60.0


@dataclass(slots=True)
class BatchTrace:
    """What happened to one batch, filled in step by step."""

    invocation_id: str
    batch_id: str
    batch_size: int
    lease_owner: str = ""
    fetched_count: int = 0
    committed: bool = False
    checkpoint_before: JsonObject | None = None
    checkpoint_after: JsonObject | None = None
    lag_seconds: float | None = None
    attempt: int = 1
    durations_ms: dict[str, float] = field(default_factory=dict)


class TriggerTelemetry:
    """The telemetry of one trigger. A collector that fails never fails a batch."""

    def __init__(self, poller_name: str, source_name: str, metrics: MetricsCollector | None, clock: Clock) -> None:
        self._poller_name = poller_name
        self._labels = {"poller_name": poller_name, "source": source_name}
        self._metrics = metrics or NoOpCollector()
        self._clock = clock
        self._held_back_since: float | None = None

    @contextmanager
    def step(self, trace: BatchTrace, name: str, error_class: type[DbError], message: str) -> Iterator[None]:
        """Time a step, and turn an error that is not ours into one that says which step failed."""
        started = self._clock.monotonic()
        try:
            yield
        except DbError:
            raise
        except (Exception, SystemExit) as error:  # a handler that calls sys.exit() has failed like any other
            raise error_class(f"{message}: {type(error).__name__}: {error}") from error
        finally:
            trace.durations_ms[name] = round((self._clock.monotonic() - started) * 1000, 2)

    @contextmanager
    def batch(self, trace: BatchTrace) -> Iterator[None]:
        """Count and log the batch once, however it ends."""
        try:
            yield
        except Exception as error:
            self._failed(trace, error)
            raise
        if trace.committed:
            self._succeeded(trace)

    @contextmanager
    def acquiring(self, error_class: type[DbError]) -> Iterator[None]:
        """Log a failed attempt to take the lease; a lease that someone else holds is no failure."""
        try:
            yield
        except LeaseConflictError as held:
            _log.debug("%s", held, extra=self._fields("lease_acquire_skipped", result="skipped"))
            raise
        except Exception as error:
            self._count_failure(error)
            _log.error(
                "Trigger '%s' could not ask for its lease: %s",
                self._poller_name,
                error,
                extra=self._fields("lease_acquire_failed", error_type=type(error).__name__, result="failure"),
            )
            if isinstance(error, DbError):
                raise
            raise error_class(f"The lease of '{self._poller_name}' could not be asked for: {error}") from error

    def retrying(self, trace: BatchTrace, error: Exception, delay_seconds: float) -> None:
        """Log that the handler failed and is tried again."""
        _log.warning(
            "Handler of '%s' failed on batch %s (%s: %s); trying again in %.2f s",
            self._poller_name,
            trace.batch_id,
            type(error).__name__,
            error,
            delay_seconds,
            extra=self._fields(
                "handler_retry",
                trace,
                error_type=type(error).__name__,
                delay_seconds=delay_seconds,
                result="retry",
            ),
        )

    def tick_done(self, delivered: int, started_monotonic: float) -> None:
        """Log a tick that ended well."""
        duration = round((self._clock.monotonic() - started_monotonic) * 1000, 2)
        self._gauge(
            names.METRIC_LAST_SUCCESS_TIMESTAMP,
            self._clock.now().timestamp(),
            {"poller_name": self._poller_name},
        )
        _log.debug(
            "Trigger '%s' delivered %d events in this tick",
            self._poller_name,
            delivered,
            extra=self._fields("tick_complete", duration_ms=duration, result="success"),
        )

    def caught_up(self) -> None:
        """Record that nothing is waiting."""
        self._gauge(names.METRIC_LAG_SECONDS, 0.0, self._labels)

    def held_back(self, reasons: tuple[str, ...]) -> None:
        """Warn when the same thing has kept the source from reading further for a while."""
        if not reasons:
            self._held_back_since = None
            return
        now = self._clock.monotonic()
        if self._held_back_since is None:
            self._held_back_since = now
        elif now - self._held_back_since >= _HELD_BACK_WARNING_SECONDS:
            self._held_back_since = now
            _log.warning(
                "Trigger '%s' waits for %s: rows written since cannot be read safely until it ends",
                self._poller_name,
                "; ".join(reasons[:3]),
                extra=self._fields("horizon_held_back", result="waiting"),
            )

    def stopped(self, reason: str) -> None:
        """Log that nothing is delivered any more."""
        _log.error(
            "Trigger '%s' was stopped: %s Nothing is delivered until 'holdfast trigger resume %s'",
            self._poller_name,
            reason,
            self._poller_name,
            extra=self._fields("stopped", result="stopped"),
        )

    def release_failed(self, error: Exception) -> None:
        """Log that the lease could not be given back; it frees itself when it runs out."""
        _log.warning(
            "The lease of '%s' could not be released and frees itself when it runs out: %s",
            self._poller_name,
            error,
            extra=self._fields("lease_release_failed", error_type=type(error).__name__, result="failure"),
        )

    def lag(self, newest_at: datetime | None, now: datetime) -> float | None:
        """Return how far the newest delivered row lies behind, where its time is known."""
        return None if newest_at is None else max(0.0, (now - newest_at).total_seconds())

    def _succeeded(self, trace: BatchTrace) -> None:
        self._increment(names.METRIC_BATCHES_TOTAL, 1, {**self._labels, "result": "success"})
        self._increment(names.METRIC_EVENTS_TOTAL, trace.fetched_count, self._labels)
        self._observe(names.METRIC_BATCH_SIZE, trace.fetched_count)
        for step, metric in _STEP_METRICS.items():
            self._observe(metric, trace.durations_ms.get(step, 0.0))
        if trace.lag_seconds is not None:
            self._gauge(names.METRIC_LAG_SECONDS, trace.lag_seconds, self._labels)
        if _log.isEnabledFor(logging.INFO):
            _log.info(
                "Trigger '%s' delivered %d events (batch %s)",
                self._poller_name,
                trace.fetched_count,
                trace.batch_id,
                extra=self._fields("batch_complete", trace, result="success"),
            )

    def _failed(self, trace: BatchTrace, error: Exception) -> None:
        self._count_failure(error)
        self._increment(names.METRIC_BATCHES_TOTAL, 1, {**self._labels, "result": "failure"})
        _log.error(
            "Trigger '%s' did not complete batch %s: %s",
            self._poller_name,
            trace.batch_id,
            error,
            exc_info=error.__cause__ is not None,
            extra=self._fields("batch_failed", trace, error_type=type(error).__name__, result="failure"),
        )

    def _count_failure(self, error: Exception) -> None:
        self._increment(names.METRIC_FAILURES_TOTAL, 1, {**self._labels, "error_type": type(error).__name__})

    def _fields(self, event: str, trace: BatchTrace | None = None, **more: object) -> dict[str, object]:
        fields: dict[str, object] = {
            "event": event,
            "poller_name": self._poller_name,
            "source": self._labels["source"],
        }
        if trace is not None:
            fields |= {
                "invocation_id": trace.invocation_id,
                "batch_id": trace.batch_id,
                "batch_size": trace.batch_size,
                "lease_owner": trace.lease_owner,
                "fetched_count": trace.fetched_count,
                "committed": trace.committed,
                "checkpoint_before": trace.checkpoint_before,
                "checkpoint_after": trace.checkpoint_after,
                "lag_seconds": trace.lag_seconds,
                "attempt": trace.attempt,
                **{f"{step}_duration_ms": value for step, value in trace.durations_ms.items()},
            }
        return fields | more

    def _increment(self, metric: str, value: float, labels: Mapping[str, str]) -> None:
        self._guarded(lambda: self._metrics.increment(metric, value, labels=labels))

    def _observe(self, metric: str, value: float) -> None:
        self._guarded(lambda: self._metrics.observe(metric, value, labels=self._labels))

    def _gauge(self, metric: str, value: float, labels: Mapping[str, str]) -> None:
        self._guarded(lambda: self._metrics.set_gauge(metric, value, labels=labels))

    def _guarded(self, emit: Callable[[], None]) -> None:
        try:
            emit()
        except Exception:
            _log.debug("A metric of '%s' could not be recorded", self._poller_name, exc_info=True)


_STEP_METRICS = {
    "fetch": names.METRIC_FETCH_DURATION_MS,
    "handler": names.METRIC_HANDLER_DURATION_MS,
    "commit": names.METRIC_COMMIT_DURATION_MS,
}
