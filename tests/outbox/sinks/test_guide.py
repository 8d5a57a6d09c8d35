"""docs/relays.md: its Python runs as it stands, from declaring a relay to receiving what it sent."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.core.clock import SystemClock
from holdfast.outbox.sinks import new_secret
from holdfast.outbox.sinks.cloud_events import as_json, cloud_event
from holdfast.outbox.sinks.signature import signature_headers, signing_keys
from tests.outbox.sinks.messages import APPENDED_AT, message, messages

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "relays.md"
PLACE = "Endpoint=sb://shop.servicebus.windows.net/;SharedAccessKeyName=app;SharedAccessKey=aHVudGVyMg=="
STORAGE = "DefaultEndpointsProtocol=https;AccountName=shop;AccountKey=aHVudGVyMg==;EndpointSuffix=core.windows.net"
SECRET = new_secret()


@pytest.fixture
def guide(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """What the guide's code leaves behind."""
    monkeypatch.chdir(tmp_path)
    for name, value in {
        "DATABASE_URL": f"sqlite:///{tmp_path / 'guide.db'}",
        "ORDERS_SECRET": SECRET,
        "NEW_SECRET": new_secret(),
        "AzureWebJobsStorage": STORAGE,
        "SERVICE_BUS": PLACE,
        "EVENT_HUBS": PLACE,
    }.items():
        monkeypatch.setenv(name, value)
    names: dict[str, Any] = {}
    for code in re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(code, str(GUIDE), "exec"), names)
    yield names
    for name in ("queue", "topic", "hub", "stream"):
        names[name].close()


def test_every_relay_of_the_guide_is_declared(guide: dict[str, Any]) -> None:
    app: Holdfast = guide["hf"]
    declared = [processor.id for processor in app.processors.declared]
    assert declared == [f"orders-{kind}" for kind in ("webhook", "queue", "topic", "hub", "kafka", "file")]


def test_its_receiver_takes_what_is_signed_once_and_nothing_else(guide: dict[str, Any]) -> None:
    body = as_json(message(1), "/shop")
    headers = signature_headers(signing_keys(SECRET), "m1", body, SystemClock())
    assert [guide["receive"](headers, body) for _ in range(2)] == [204, 204]
    assert guide["known"] == {"m1"}
    assert guide["receive"](headers, body.replace(b"m1", b"m2")) == 401
    assert guide["known"] == {"m1"}


def test_its_own_sink_writes_what_it_is_given(guide: dict[str, Any]) -> None:
    guide["FileSink"]("orders.jsonl").send(messages(3))
    lines = Path("orders.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [cloud_event(each, "/shop") for each in messages(3)]


def test_its_event_has_the_attributes_of_a_real_one() -> None:
    [shown] = re.findall(r"```json\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    event = json.loads(shown)
    real = cloud_event(message(7, key="customer-1", causation_id="request-9", appended_at=APPENDED_AT), "/shop")
    assert {**event, "id": "m7", "data": real["data"]} == real
