"""Names of metrics and log fields, and the protocol a metrics back end implements.

The metric names are azure-functions-db's, so that its users keep their dashboards.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Protocol, runtime_checkable

_log = logging.getLogger("holdfast")

METRIC_BATCHES_TOTAL = "azfdb_batches_total"
METRIC_EVENTS_TOTAL = "azfdb_events_total"
METRIC_FAILURES_TOTAL = "azfdb_failures_total"
METRIC_FETCH_DURATION_MS = "azfdb_fetch_duration_ms"
METRIC_HANDLER_DURATION_MS = "azfdb_handler_duration_ms"
METRIC_COMMIT_DURATION_MS = "azfdb_commit_duration_ms"
METRIC_BATCH_SIZE = "azfdb_batch_size"
METRIC_LAG_SECONDS = "azfdb_lag_seconds"
METRIC_LAST_SUCCESS_TIMESTAMP = "azfdb_last_success_timestamp"


@runtime_checkable
class MetricsCollector(Protocol):
    """Where metrics go. An error it raises is logged and never fails a batch."""

    def increment(self, name: str, value: float = 1, *, labels: Mapping[str, str] | None = None) -> None:
        """Add to a counter."""
        ...

    def observe(self, name: str, value: float, *, labels: Mapping[str, str] | None = None) -> None:
        """Record one value of a distribution."""
        ...

    def set_gauge(self, name: str, value: float, *, labels: Mapping[str, str] | None = None) -> None:
        """Set a gauge."""
        ...


class SafeCollector:
    """Hands metrics on to a collector, if there is one. One that fails never fails the work: that is logged."""

    def __init__(self, collector: MetricsCollector | None) -> None:
        self._collector = collector

    def increment(self, name: str, value: float = 1, *, labels: Mapping[str, str] | None = None) -> None:
        """Add to a counter."""
        self._tell("increment", name, value, labels)

    def observe(self, name: str, value: float, *, labels: Mapping[str, str] | None = None) -> None:
        """Record one value of a distribution."""
        self._tell("observe", name, value, labels)

    def set_gauge(self, name: str, value: float, *, labels: Mapping[str, str] | None = None) -> None:
        """Set a gauge."""
        self._tell("set_gauge", name, value, labels)

    def _tell(self, how: str, name: str, value: float, labels: Mapping[str, str] | None) -> None:
        if self._collector is not None:
            try:
                getattr(self._collector, how)(name, value, labels=labels)
            except Exception:
                _log.exception("The metrics collector failed; nothing else is affected")
