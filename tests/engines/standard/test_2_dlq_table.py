"""Section 2, the table of dead letters [ENGINE-4]. Its rules are numbered 1.1 to 1.3; for the rows: test_tables.py."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from azure.data.tables import TableServiceClient

from holdfast.records.dead_letters import DeadLetter, LetterStatus
from tests.engines.places import ENGINE, Bench
from tests.records.samples import days_ago, letter

FIELDS = {
    "PartitionKey",
    "RowKey",
    "Engine",
    "InstanceId",
    "OriginalQueue",
    "OriginalMessage",
    "ErrorMessage",
    "DequeueCount",
    "FirstFailureAtUtc",
    "LastFailureAtUtc",
    "Status",
    "CorrelationId",
}


def buried(bench: Bench, **fields: Any) -> DeadLetter:
    bench.fails = lambda context: True
    bench.send(**fields)
    bench.to_the_end()
    return bench.letters[-1]


def test_2_1_1_every_field_of_the_schema_is_filled(bench: Bench) -> None:
    found = buried(bench, instanceId="i-7")
    assert (found.engine, found.instance_id, found.original_queue) == (ENGINE, "i-7", bench.queue.name)
    assert json.loads(found.original_message)["messageId"] == "m-1"
    assert (found.error_message, found.dequeue_count) == ("ValueError: no key at attempt 2", 3)
    assert found.first_failure_at <= found.last_failure_at
    assert (found.status, found.correlation_id, found.item_id) == (LetterStatus.PENDING, "c-1", "m-1")
    assert (found.resolution_notes, found.resolved_at, found.resolved_by) == (None, None, None)
    assert found.row_key.startswith("m-1-")


@pytest.mark.parametrize("place", [pytest.param("azure", marks=pytest.mark.component("azurite"))], indirect=True)
def test_2_1_1_the_row_has_the_standards_names(bench: Bench) -> None:
    found = buried(bench)
    with TableServiceClient.from_connection_string(str(bench.place.connection_string)) as service:
        row = service.get_table_client(bench.tables.tables.dlq_table_name).get_entity(ENGINE, found.row_key)
    assert set(row) >= FIELDS
    assert (row["Status"], row["DequeueCount"], row["CorrelationId"]) == ("Pending", 3, "c-1")


def test_2_1_1_instance_id_is_publisher_unless_told(bench: Bench) -> None:
    assert buried(bench).instance_id == "publisher"


def test_2_1_1_notes_time_and_person_are_there_once_it_is_resolved(bench: Bench) -> None:
    found = buried(bench)
    resolved = bench.hf.dead_letters.resolve(ENGINE, found.row_key, "key restored", "eve")
    assert (resolved.status, resolved.resolution_notes, resolved.resolved_by) == (
        LetterStatus.RESOLVED,
        "key restored",
        "eve",
    )
    assert resolved.resolved_at is not None


def test_2_1_2_any_engine_of_the_standard_can_be_declared_with_its_queue(bench: Bench) -> None:
    named = {
        "provisioning": "webhook-queue",
        "tls": "tls-rotation-queue",
        "spn": "spn-rotation-queue",
        "update-publisher": None,
        "alerts": "monitor-alerts-queue",
        "update": "update-notifications-queue",
        "health": "health-notifications-queue",
    }
    for engine, queue in named.items():
        declared = bench.hf.engine(engine, queue=queue)(bench.handle)
        assert declared.settings.queue == (queue or f"{engine}-queue")


def test_2_1_3_pending_letters_stay_for_ever_and_settled_ones_for_90_days(bench: Bench) -> None:
    """The standard counts Expired ones from the last failure; we count from when they were settled (decision 0041)."""
    letters = bench.hf.dead_letters
    for number, days in enumerate((89, 91)):
        failed = {"last_failure_at": days_ago(400), "first_failure_at": days_ago(400)}
        assert letters.add(letter(item=f"pending-{number}", **failed))
        settled = {"status": LetterStatus.EXPIRED, "resolved_at": days_ago(days), "resolved_by": "eve"}
        assert letters.add(letter(item=f"expired-{number}", **failed, **settled))
    bench.hf.prune()
    kept = {str(each.item_id) for each in letters.page().items}
    assert kept == {"pending-0", "pending-1", "expired-0"}


def test_2_1_3_a_resolved_letter_is_counted_from_its_resolution(bench: Bench) -> None:
    letters = bench.hf.dead_letters
    old = letter(last_failure_at=days_ago(400), first_failure_at=days_ago(400))
    assert letters.add(old)
    letters.resolve(ENGINE, old.row_key, "at last", "eve")
    bench.hf.prune()
    [kept] = letters.page().items
    assert kept.status is LetterStatus.RESOLVED
    resolved_long_ago = replace(
        letter(item="m-2"), status=LetterStatus.RESOLVED, resolved_at=days_ago(91), resolved_by="eve"
    )
    assert letters.add(resolved_long_ago)
    bench.hf.prune()
    assert [each.item_id for each in letters.page().items] == ["m-1"]


def test_2_a_letter_of_any_id_is_one_row(bench: Bench) -> None:
    bench.fails = lambda context: True
    strange = "m/1\\#?% ü"
    bench.send(strange, "c/1 #?")
    bench.to_the_end()
    [found] = bench.letters
    assert (found.item_id, found.correlation_id) == (strange, "c/1 #?")
    assert bench.records.letters.get(ENGINE, found.row_key) == found


def test_2_a_large_message_is_kept_whole(bench: Bench) -> None:
    text = "x" * 40_000
    bench.fails = lambda context: True
    bench.send(payload=text)
    bench.to_the_end()
    [found] = bench.letters
    assert json.loads(found.original_message)["payload"] == text
    assert found.last_failure_at - found.first_failure_at >= timedelta()
