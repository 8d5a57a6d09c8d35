"""A message as a CloudEvent: every attribute the specification asks for, and the same bytes at every delivery."""

from __future__ import annotations

import json
import random
from datetime import datetime, timedelta, timezone

import pytest

from holdfast.core.errors import ConfigurationError
from holdfast.outbox.message import Checkpoint
from holdfast.outbox.sinks.cloud_events import as_json, as_json_batch, checked_source, cloud_event
from tests.outbox.sinks.messages import message


def test_a_message_becomes_a_cloud_event() -> None:
    event = cloud_event(message(7, key="customer-1", causation_id="request-9"), "/shop")
    assert event == {
        "specversion": "1.0",
        "id": "m7",
        "source": "/shop",
        "type": "OrderPlaced",
        "time": "2026-03-04T05:06:07.080000Z",
        "subject": "customer-1",
        "datacontenttype": "application/json",
        "correlationid": "c7",
        "causationid": "request-9",
        "sequence": "00000000000000000707.0000000000000000007",
        "data": {"order": 7, "note": "zwölf Äpfel"},
    }


def test_what_a_message_does_not_have_is_left_out_and_not_null() -> None:
    event = cloud_event(message(1, correlation_id=None, data=None), "/shop")
    assert {"subject", "correlationid", "causationid"}.isdisjoint(event)
    assert event["data"] is None


def test_the_time_is_told_in_utc_whatever_zone_it_was_given_in() -> None:
    berlin = datetime(2026, 3, 4, 6, 6, 7, tzinfo=timezone(timedelta(hours=1)))
    assert cloud_event(message(1, appended_at=berlin), "/shop")["time"] == "2026-03-04T05:06:07Z"


def test_sequences_sort_as_texts_in_the_order_of_the_outbox() -> None:
    numbers = [0, 1, 9, 10, 99, 2**31, 2**63 - 1]
    places = [Checkpoint(transaction, position) for transaction in [*numbers, 2**64 - 1] for position in numbers]
    shuffled = random.Random(4).sample(places, len(places))
    by_text = sorted(shuffled, key=_sequence)
    assert by_text == places


def _sequence(place: Checkpoint) -> str:
    moved = message(1, transaction_id=place.transaction_id, position=place.position)
    return str(cloud_event(moved, "/shop")["sequence"])


def test_headers_that_cloud_events_can_hold_become_extensions_and_the_others_are_left_out() -> None:
    held = {"traceparent": "00-ab-cd-01", "tenant": "blue", "retry": True, "shard": -(2**31), "level2": 2**31 - 1}
    left_out = {
        "x-tenant": "a",
        "Tenant": "a",
        "ratio": 0.5,
        "tags": ["a"],
        "none": None,
        "big": 2**31,
        "": "a",
        "ä": "a",
    }
    event = cloud_event(message(1, headers={**held, **left_out}), "/shop")
    assert {name: event[name] for name in held} == held
    assert left_out.keys().isdisjoint(event)


@pytest.mark.parametrize("name", ["id", "source", "type", "data", "sequence", "subject", "dataschema", "causationid"])
def test_a_header_cannot_pass_for_an_attribute_of_the_message(name: str) -> None:
    plain = cloud_event(message(1), "/shop")
    assert cloud_event(message(1, headers={name: "forged"}), "/shop") == plain


def test_the_bytes_are_the_same_at_every_delivery() -> None:
    assert as_json(message(1, headers={"b": 1, "a": 2}), "/shop") == as_json(
        message(1, headers={"b": 1, "a": 2}), "/shop"
    )


def test_a_batch_is_a_json_list_of_the_events() -> None:
    single = [as_json(message(number), "/shop") for number in (1, 2)]
    assert json.loads(as_json_batch(single)) == [json.loads(one) for one in single]


@pytest.mark.parametrize("source", ["", " ", "/my shop", "/shöp", "a\nb", None, 5])
def test_a_source_that_is_no_uri_reference_is_refused(source: object) -> None:
    with pytest.raises(ConfigurationError, match="URI reference"):
        checked_source(source)


@pytest.mark.parametrize("source", ["/shop", "https://shop.example/orders?x=1#y", "urn:shop", "shop"])
def test_uri_references_are_taken_as_they_are(source: str) -> None:
    assert checked_source(source) == source
