"""Logs and metrics of a trigger, attached from outside: the runner says what it does, this says how it went."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from dataclasses import fields as dataclass_fields
from datetime import datetime

from sqlalchemy.exc import SQLAlchemyError

from ..core import telemetry as names
from ..core.clock import Clock
from ..core.errors import (
    CommitError,
    DbError,
    FetchError,
    HandlerError,
    LeaseAcquireError,
    LeaseConflictError,
    LostLeaseError,
    SerializationError,
    SourceConfigurationError,
    UnreadableStateError,
)
from ..core.telemetry import MetricsCollector, SafeCollector
from ..core.types import JsonObject
from ..database.error_text import error_text
from .lag import Lag
from .sources.protocol import FetchResult

_log = logging.getLogger("holdfast.trigger")
_HELD_BACK_WARNING_SECONDS = 60.0
_WRAPPERS = (HandlerError, FetchError, SerializationError, CommitError, LeaseAcquireError)
_ACQUIRING_EVENTS: tuple[tuple[type[DbError], str], ...] = (
    (UnreadableStateError, "checkpoint_load_failed"),
    (SourceConfigurationError, "source_descriptor_failed"),
)
_BATCH_EVENTS: tuple[tuple[type[DbError], str], ...] = (
    (LostLeaseError, "lease_renew_failed"),
    (SerializationError, "normalize_failed"),
    (HandlerError, "handler_failed"),
    (CommitError, "commit_failed"),
)


def original_type(error: BaseException) -> str:
    """Return the kind of error that failed a step: the handler's own, not ours around it.

    A ``FetchError`` of a source that reads by SQL stays one, as in azure-functions-db; so does what is no wrapper.
    """
    cause = error.__cause__
    if type(error) not in _WRAPPERS or cause is None:
        return type(error).__name__
    is_of_source = isinstance(error, FetchError) and isinstance(cause, SQLAlchemyError)
    return type(error if is_of_source else cause).__name__


def _event_of(error: Exception, trace: BatchTrace) -> str:
    """Return azure-functions-db's name for the failure of a step."""
    named = next((name for kind, name in _BATCH_EVENTS if isinstance(error, kind)), None)
    last_step = next(reversed(trace.durations_ms), "batch")
    return named or f"{last_step}_failed"


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
    """The telemetry of one trigger: one for all of its runners, because lag and waiting go on from tick to tick."""

    def __init__(self, poller_name: str, source_name: str, metrics: MetricsCollector | None, clock: Clock) -> None:
        self._poller_name = poller_name
        self._labels = {"poller_name": poller_name, "source": source_name}
        self._metrics = SafeCollector(metrics)
        self._clock = clock
        self._held_back_since: float | None = None
        self.lag = Lag()
        self._writing_lag = threading.Lock()

    @contextmanager
    def step(self, trace: BatchTrace, name: str, error_class: type[DbError], message: str) -> Iterator[None]:
        """Time a step, and turn an error that is not ours into one that says which step failed."""
        started = self._clock.monotonic()
        try:
            yield
        except DbError:
            raise
        except (Exception, SystemExit) as error:  # a handler that calls sys.exit() has failed like any other
            raise error_class(f"{message}: {error_text(error)}") from error
        finally:
            trace.durations_ms[name] = round((self._clock.monotonic() - started) * 1000, 2)

    @contextmanager
    def batch(self, trace: BatchTrace, now: Callable[[], datetime]) -> Iterator[None]:
        """Count and log the batch once, and write the lag, however it ends; a round that found nothing is a success."""
        try:
            yield
        except Exception as error:
            if not trace.fetched_count:
                self.lag.unread(now())
            self._write_lag(trace, now())
            self._failed(trace, error)
            raise
        self._write_lag(trace, now())
        labels = {"poller_name": self._poller_name}
        self._metrics.set_gauge(names.METRIC_LAST_SUCCESS_TIMESTAMP, self._clock.now().timestamp(), labels=labels)
        if trace.committed:
            self._succeeded(trace)

    def unread(self, now: datetime, since: datetime | None = None) -> None:
        """Write the lag of a trigger that cannot be run, or, as far as is known, could not be since a moment."""
        self.lag.unread(since or now)
        self.waits(now)

    def waits(self, now: datetime) -> None:
        """Write the lag of what waits by now, for example while a handler runs: it grows with time."""
        self._set_lag(now)

    def _write_lag(self, trace: BatchTrace, now: datetime) -> None:
        trace.lag_seconds = self._set_lag(now)

    def _set_lag(self, now: datetime) -> float:
        with self._writing_lag:  # what was known first is not written last
            seconds = self.lag.seconds(now)
            self._metrics.set_gauge(names.METRIC_LAG_SECONDS, seconds, labels=self._labels)
        return seconds

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
            event = next((name for kind, name in _ACQUIRING_EVENTS if isinstance(error, kind)), "lease_acquire_failed")
            _log.error(
                "Trigger '%s' could not ask for its lease: %s",
                self._poller_name,
                error,
                extra=self._fields(event, error_type=original_type(error), result="failure"),
            )
            if isinstance(error, DbError):
                raise
            raise error_class(
                f"The lease of '{self._poller_name}' could not be asked for: {error_text(error)}"
            ) from error

    def found(self, found: FetchResult, trace: BatchTrace, now: datetime) -> None:
        """Tell how long what was read has waited, before a handler that may take its time, and who holds back more."""
        self.held_back(found.held_back_by)
        self.lag.found(found, now)
        self._write_lag(trace, now)

    def retrying(self, trace: BatchTrace, error: Exception, delay_seconds: float, now: datetime) -> None:
        """Log that the handler failed and is tried again; its batch grows older meanwhile."""
        self._write_lag(trace, now)
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
                error_type=original_type(error),
                delay_seconds=delay_seconds,
                result="retry",
            ),
        )

    def tick_started(self) -> None:
        """Log that a tick begins."""
        _log.debug("Trigger '%s' begins a tick", self._poller_name, extra=self._fields("tick_start"))

    def nothing_found(self, trace: BatchTrace) -> None:
        """Log that there was nothing to deliver."""
        _log.debug("Trigger '%s' found no changes", self._poller_name, extra=self._fields("fetch_empty", trace))

    def tick_done(self, delivered: int, started_monotonic: float) -> None:
        """Log a tick that ended well."""
        duration = round((self._clock.monotonic() - started_monotonic) * 1000, 2)
        _log.info(
            "Trigger '%s' delivered %d events in this tick",
            self._poller_name,
            delivered,
            extra=self._fields("tick_complete", duration_ms=duration, result="success"),
        )

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
            extra=self._fields("lease_release_failed", error_type=original_type(error), result="failure"),
        )

    def _succeeded(self, trace: BatchTrace) -> None:
        self._metrics.increment(names.METRIC_BATCHES_TOTAL, 1, labels={**self._labels, "result": "success"})
        self._metrics.increment(names.METRIC_EVENTS_TOTAL, trace.fetched_count, labels=self._labels)
        self._metrics.observe(names.METRIC_BATCH_SIZE, trace.fetched_count, labels=self._labels)
        for step, metric in _STEP_METRICS.items():
            self._metrics.observe(metric, trace.durations_ms.get(step, 0.0), labels=self._labels)
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
        self._metrics.increment(names.METRIC_BATCHES_TOTAL, 1, labels={**self._labels, "result": "failure"})
        _log.error(
            "Trigger '%s' did not complete batch %s: %s",
            self._poller_name,
            trace.batch_id,
            error,
            exc_info=error.__cause__ is not None,
            extra=self._fields(_event_of(error, trace), trace, error_type=original_type(error), result="failure"),
        )

    def _count_failure(self, error: Exception) -> None:
        labels = {**self._labels, "error_type": original_type(error)}
        self._metrics.increment(names.METRIC_FAILURES_TOTAL, 1, labels=labels)

    def _fields(self, event: str, trace: BatchTrace | None = None, **more: object) -> dict[str, object]:
        fields: dict[str, object] = {
            "event": event,
            "poller_name": self._poller_name,
            "source": self._labels["source"],
        }
        if trace is not None:
            fields |= {each.name: getattr(trace, each.name) for each in dataclass_fields(trace)}
            del fields["durations_ms"]
            fields |= {f"{step}_duration_ms": value for step, value in trace.durations_ms.items()}
        return fields | more


_STEP_METRICS = {
    "fetch": names.METRIC_FETCH_DURATION_MS,
    "handler": names.METRIC_HANDLER_DURATION_MS,
    "commit": names.METRIC_COMMIT_DURATION_MS,
}
