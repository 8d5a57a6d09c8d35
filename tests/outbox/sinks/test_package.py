"""What the package of sinks offers, and that importing it loads no client library."""

from __future__ import annotations

import json
import subprocess
import sys

from holdfast.outbox import sinks
from holdfast.outbox.sinks import EventHubsSink, KafkaSink, ServiceBusSink, Sink, StorageQueueSink, WebhookSink

EVERY_SINK: list[type[Sink]] = [WebhookSink, StorageQueueSink, ServiceBusSink, EventHubsSink, KafkaSink]


def test_importing_the_sinks_loads_no_client_library() -> None:
    code = "import json, sys, holdfast.outbox.sinks; print(json.dumps(list(sys.modules)))"
    loaded = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    assert {"httpx", "azure", "confluent_kafka"}.isdisjoint(name.split(".")[0] for name in loaded)


def test_the_public_names_are_these_and_all_are_documented() -> None:
    assert set(sinks.__all__) == {
        *("Sink", "WebhookSink", "StorageQueueSink", "ServiceBusSink", "EventHubsSink", "KafkaSink"),
        *("verify", "new_secret", "SignatureError", "DeliveryError", "cloud_event"),
    }
    assert all((getattr(sinks, name).__doc__ or "").strip() for name in sinks.__all__)


def test_every_sink_sends_and_closes() -> None:
    assert all(callable(getattr(kind, name)) for kind in EVERY_SINK for name in ("send", "close"))
