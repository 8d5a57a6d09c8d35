"""Metrics to OpenTelemetry. Needs the ``otel`` extra."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from .errors import MissingDependencyError


class OpenTelemetryCollector:
    """A ``MetricsCollector`` that records into an OpenTelemetry meter (by default the global one's ``holdfast``)."""

    def __init__(self, meter: Any = None) -> None:
        try:
            metrics = import_module("opentelemetry.metrics")
        except ModuleNotFoundError as error:
            raise MissingDependencyError(
                "OpenTelemetryCollector needs OpenTelemetry. Run: pip install 'holdfast[otel]'"
            ) from error
        self._meter = meter or metrics.get_meter("holdfast")
        self._lock = threading.Lock()
        self._instruments: dict[str, Any] = {}

    def increment(self, name: str, value: float = 1, *, labels: Mapping[str, str] | None = None) -> None:
        """Add to a counter."""
        self._instrument(name, "create_counter").add(value, dict(labels or {}))

    def observe(self, name: str, value: float, *, labels: Mapping[str, str] | None = None) -> None:
        """Record one value of a histogram; names that end in ``_ms`` carry that unit."""
        self._instrument(name, "create_histogram").record(value, dict(labels or {}))

    def set_gauge(self, name: str, value: float, *, labels: Mapping[str, str] | None = None) -> None:
        """Set a gauge."""
        self._instrument(name, "create_gauge").set(value, dict(labels or {}))

    def _instrument(self, name: str, create: str) -> Any:
        with self._lock:
            if name not in self._instruments:
                unit = "ms" if name.endswith("_ms") else "s" if name.endswith("_seconds") else ""
                self._instruments[name] = getattr(self._meter, create)(name, unit=unit)
            return self._instruments[name]
