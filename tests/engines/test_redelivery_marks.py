"""Copies of messages: they keep their ids whatever the message is, and nothing in them can stop a queue."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast.core.errors import MessageError
from holdfast.engines.queues.protocol import Received
from holdfast.engines.queues.redelivery_marks import (
    as_sent,
    carried_count,
    first_inserted,
    marked_as_copied,
    may_have_twin,
    put_back_copy,
    retried_copy,
)
from holdfast.engines.runner import Outcome
from holdfast.records.dead_letters import LetterStatus
from tests.components.processes import wait_until
from tests.engines.places import Bench

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
LARGE = json.dumps({"payload": "日" * 15_000}, ensure_ascii=False)


@pytest.mark.parametrize("body", ["{}", '{"payload": null}'])
def test_a_message_without_fields_keeps_the_ids_that_it_was_given(body: str) -> None:
    copy = put_back_copy(Received("q-7", body, 3, NOW, None))
    assert json.loads(copy)["messageId"] == "q-7"
    assert (carried_count(copy), first_inserted(copy)) == (2, NOW)
    assert may_have_twin(json.loads(marked_as_copied(body)))
    retried = json.loads(retried_copy(body, message_id="m-8", correlation_id="c-8", row_key="r", begun_at=NOW))
    assert (retried["messageId"], retried["correlationId"]) == ("m-8", "c-8")


@pytest.mark.parametrize("body", ["not json", "7", "[]", '"text"'])
def test_what_is_no_message_stays_as_it_is(body: str) -> None:
    assert put_back_copy(Received("q-7", body, 3, NOW, None)) == marked_as_copied(body) == as_sent(body) == body
    assert (carried_count(body), first_inserted(body)) == (0, None)


def test_a_copy_is_hardly_longer_than_its_message_whatever_its_letters() -> None:
    copy = put_back_copy(Received("q-7", LARGE, 3, NOW, None))
    assert len(copy.encode()) < len(LARGE.encode()) + 300


def test_what_we_added_is_taken_off_again_and_nothing_else_is_touched() -> None:
    body = '{"payload":  {"a": 1}, "tag": "é"}'
    assert as_sent(body) == body
    assert json.loads(as_sent(put_back_copy(Received("q-7", body, 3, NOW, None)))) == {
        "messageId": "q-7",
        **json.loads(body),
    }


@pytest.mark.parametrize(
    "fields",
    [
        {"holdfastInsertedAtUtc": "0001-01-01T00:00:00+14:00"},
        {"holdfastInsertedAtUtc": "1500-01-01T00:00:00Z"},
        {"holdfastInsertedAtUtc": 7},
        {"holdfastDequeueCount": 2**70},
        {"holdfastDequeueCount": -1},
        {"holdfastDequeueCount": True},
    ],
)
def test_carried_fields_that_make_no_sense_are_ignored(bench: Bench, fields: dict[str, Any]) -> None:
    bench.send(**fields)
    assert bench.deliver() is Outcome.SUCCEEDED
    assert bench.is_empty


@pytest.mark.parametrize("moment", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_a_time_that_no_calendar_has_makes_a_dead_letter_at_once(bench: Bench, moment: str) -> None:
    bench.send(enqueuedAtUtc=moment)
    assert bench.deliver() is Outcome.DEAD_LETTERED
    assert "enqueuedAtUtc" in bench.letters[0].error_message
    assert bench.is_empty


def test_a_dead_letters_message_that_is_sent_again_by_hand_ends_somewhere(singleton: Bench) -> None:
    """It was a copy once; sent again, it is a message of its own and not the row that was resolved."""
    bench = singleton
    bench.fails = lambda context: True
    bench.hf.registry.acquire("another", duration_seconds=50)
    bench.send()
    assert bench.deliver() is Outcome.CONFLICT  # so that there is a copy
    bench.hf.registry.release("another")
    bench.to_the_end()
    [first] = bench.letters
    bench.hf.dead_letters.resolve(first.engine, first.row_key, "sent again", "eve")
    if bench.place.is_azure:  # which tells when a message came to the second
        wait_until(lambda: datetime.now(UTC) - first.first_failure_at > timedelta(seconds=2), "another second")
    bench.queue.send(first.original_message, message_id="m-1")
    bench.to_the_end()
    statuses = sorted(letter.status.value for letter in bench.letters)
    assert statuses == [LetterStatus.PENDING.value, LetterStatus.RESOLVED.value]


def test_a_producer_cannot_use_our_fields(bench: Bench) -> None:
    with pytest.raises(MessageError, match="holdfastDequeueCount"):
        bench.hf.engines.send("hmac", {}, others={"holdfastDequeueCount": 9})
    assert bench.is_empty
