"""Metrics reach OpenTelemetry under their names and units."""

from __future__ import annotations

import sys

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from holdfast import MetricsCollector, MissingDependencyError, OpenTelemetryCollector
from holdfast.core import telemetry


def test_counters_histograms_and_gauges_are_recorded_with_labels() -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    collector = OpenTelemetryCollector(provider.get_meter("test"))
    assert isinstance(collector, MetricsCollector)
    labels = {"poller_name": "orders"}
    collector.increment(telemetry.METRIC_EVENTS_TOTAL, 2, labels=labels)
    collector.increment(telemetry.METRIC_EVENTS_TOTAL, 3, labels=labels)
    collector.observe(telemetry.METRIC_FETCH_DURATION_MS, 1.5, labels=labels)
    collector.set_gauge(telemetry.METRIC_LAG_SECONDS, 4.0, labels=labels)
    data = reader.get_metrics_data()
    assert data is not None
    found = {metric.name: metric for metric in data.resource_metrics[0].scope_metrics[0].metrics}
    events = found[telemetry.METRIC_EVENTS_TOTAL].data.data_points[0]
    assert (events.value, dict(events.attributes or {})) == (5, labels)  # type: ignore[union-attr]  # a sum has a value
    assert found[telemetry.METRIC_FETCH_DURATION_MS].unit == "ms"
    assert found[telemetry.METRIC_LAG_SECONDS].unit == "s"
    provider.shutdown()


def test_without_the_extra_the_message_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.metrics", None)
    with pytest.raises(MissingDependencyError, match=r"holdfast\[otel\]"):
        OpenTelemetryCollector()
