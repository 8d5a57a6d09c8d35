"""Section 3, the API of dead letters, over what engines really left. Its rules are numbered 2.1 to 2.4.

What does not depend on where the letters are is shown over the databases in tests/api/test_standard.py.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from holdfast.core.errors import Ambiguous, DbConnectionError, Unavailable
from holdfast.engines.queues.protocol import QueueAccessError
from holdfast.engines.queues.storage import StorageQueue
from holdfast.engines.runner import Outcome
from holdfast.records import audit
from holdfast.records.dead_letters import DeadLetter, LetterStatus
from tests.api.clients import Client, Office, every_page
from tests.engines.places import ENGINE, Bench
from tests.records.samples import NOON, days_ago, letter

IN_AZURE = pytest.mark.parametrize(
    "place", [pytest.param("azure", marks=pytest.mark.component("azurite"))], indirect=True
)


def buried(bench: Bench) -> DeadLetter:
    bench.fails = lambda context: True
    bench.send(instanceId="i-7")
    assert bench.to_the_end()[-1] is Outcome.DEAD_LETTERED
    bench.fails = lambda context: False
    bench.executions.clear()
    [found] = bench.letters
    return found


def keys(client: Client, **parameters: Any) -> list[str]:
    return [item["rowKey"] for item in client.get("/api/dlq", **parameters).items]


def told(moment: Any) -> str:
    return str(moment.isoformat()).replace("+00:00", "Z")


def test_3_2_1_letters_of_engines_are_listed_and_got(bench: Bench, office: Office) -> None:
    found = buried(bench)
    assert keys(office.reader) == [found.row_key]
    assert keys(office.reader, engine=ENGINE) == [found.row_key]
    details = office.auditor.get(f"/api/dlq/{ENGINE}/{found.row_key}").data
    assert (details["status"], details["instanceId"], details["itemId"]) == ("Pending", "i-7", "m-1")
    assert details["originalMessage"] == found.original_message
    assert office.reader.get(f"/api/dlq/{ENGINE}/none-20260101T000000000000Z").status == 404


@IN_AZURE
@pytest.mark.parametrize("status", ["Resolved", "Expired"])
def test_3_2_1_patch_settles_a_pending_letter_once_and_says_who(bench: Bench, office: Office, status: str) -> None:
    path = f"/api/dlq/{ENGINE}/{buried(bench).row_key}"
    change = {"status": status, "resolutionNotes": "by hand"}
    settled = office.operator("PATCH", path, json=change).data
    assert (settled["status"], settled["resolutionNotes"], settled["resolvedBy"]) == (status, "by hand", "the-operate")
    assert office.operator("PATCH", path, json=change).refusal[:2] == (409, "CONFLICT")
    assert len(office.audited()) == 1


@IN_AZURE
def test_3_2_1_expire_gives_up_on_old_pending_letters(bench: Bench, office: Office) -> None:
    letters = bench.hf.dead_letters
    old, young = letter(item="old", last_failure_at=days_ago(40)), letter(item="young", last_failure_at=days_ago(1))
    workload = letter(item="job-1", engine="jobs:email", last_failure_at=days_ago(40))
    for each in (old, young, workload):
        assert letters.add(each)
    answer = office.operator("POST", "/api/dlq/expire", json={"olderThanDays": 30, "engine": ENGINE})
    assert answer.data == {"expired": 1}
    assert office.operator("POST", "/api/dlq/expire", json={"olderThanDays": 30}).data == {"expired": 1}
    assert set(keys(office.reader, status="Expired")) == {old.row_key, workload.row_key}
    assert keys(office.reader, status="Pending") == [young.row_key]


@IN_AZURE
def test_3_2_2_every_query_parameter_narrows(bench: Bench, office: Office) -> None:
    letters = bench.hf.dead_letters
    one = letter(instance_id="inst-1")
    two = letter(item="m-2", engine="tls", correlation_id="c-2", last_failure_at=NOON + timedelta(hours=1))
    for each in (one, two):
        assert letters.add(each)
    letters.resolve("tls", two.row_key, "new disk", "eve")
    ask = office.reader
    assert set(keys(ask)) == {one.row_key, two.row_key}
    assert keys(ask, engine="tls") == [two.row_key]
    assert keys(ask, status="Pending") == [one.row_key]
    assert keys(ask, instanceId="inst-1") == [one.row_key]
    assert keys(ask, correlationId="c-2") == [two.row_key]
    assert keys(ask, fromDate=told(NOON), toDate=told(NOON + timedelta(hours=1))) == [one.row_key]
    assert keys(ask, fromDate=told(NOON + timedelta(microseconds=1))) == [two.row_key]


@IN_AZURE
def test_3_2_2_limit_and_continuation_token_over_engines_and_workloads(bench: Bench, office: Office) -> None:
    for number in range(5):
        assert bench.hf.dead_letters.add(letter(item=f"m-{number}"))
        assert bench.hf.dead_letters.add(letter(item=f"job-{number}", engine="jobs:email"))
    pages = list(every_page(office.reader, "/api/dlq", limit=3))
    assert [len(page) for page in pages] == [3, 3, 3, 1]
    assert len({item["rowKey"] for page in pages for item in page}) == 10
    assert office.reader.get("/api/dlq", limit=101).refusal == (400, "VALIDATION_ERROR", "limit")


@IN_AZURE
def test_3_2_3_the_response_has_the_standards_fields_and_no_others(bench: Bench, office: Office) -> None:
    found = buried(bench)
    assert office.reader.get("/api/dlq").data == {
        "items": [
            {
                "engine": ENGINE,
                "rowKey": found.row_key,
                "instanceId": "i-7",
                "originalQueue": bench.queue.name,
                "errorMessage": "ValueError",
                "dequeueCount": 3,
                "status": "Pending",
                "firstFailureAtUtc": told(found.first_failure_at),
                "lastFailureAtUtc": told(found.last_failure_at),
                "correlationId": "c-1",
            }
        ],
        "continuationToken": None,
    }


def test_3_2_4_retry_enqueues_resolves_as_retried_and_returns_the_new_message_id(bench: Bench, office: Office) -> None:
    found = buried(bench)
    answer = office.operator("POST", f"/api/dlq/{ENGINE}/{found.row_key}/retry").data
    settled = bench.hf.dead_letters.get(ENGINE, found.row_key)
    assert settled is not None
    assert (settled.status, settled.resolution_notes) == (LetterStatus.RESOLVED, "Retried")
    assert (settled.resolved_by, settled.retried_as) == ("the-operate", answer["messageId"])
    assert answer["messageId"] != "m-1"
    assert bench.to_the_end() == [Outcome.SUCCEEDED]
    [message] = bench.executions
    assert (message.message_id, message.correlation_id, message.instance_id) == (answer["messageId"], "c-1", "i-7")
    assert message.payload == {"key": 7}
    assert [(row[0], row[1]) for row in office.audited()] == [("the-operate", "dlq retry")]


def test_3_2_4_a_letter_is_retried_once(bench: Bench, office: Office) -> None:
    path = f"/api/dlq/{ENGINE}/{buried(bench).row_key}/retry"
    assert office.operator("POST", path).status == 200
    assert office.operator("POST", path).refusal[:2] == (409, "CONFLICT")
    assert bench.to_the_end() == [Outcome.SUCCEEDED]


@IN_AZURE
def test_3_2_4_what_its_queue_does_not_take_any_more_is_refused_and_stays_as_it_was(
    bench: Bench, office: Office
) -> None:
    body = json.dumps({"messageId": "m-1", "payload": "x" * 49_100}, separators=(",", ":"))
    large = letter(item="large", original_message=body, original_queue=bench.queue.name)
    gone = letter(item="gone", original_message="{}", original_queue="no-such-queue")
    for each, refusal in ((large, (413, "PAYLOAD_TOO_LARGE")), (gone, (409, "CONFLICT"))):
        assert bench.hf.dead_letters.add(each)
        path = f"/api/dlq/{ENGINE}/{each.row_key}"
        assert office.operator("POST", f"{path}/retry").refusal == (*refusal, f"{ENGINE}/{each.row_key}")
        assert bench.hf.dead_letters.get(ENGINE, each.row_key) == each
        assert office.operator("PATCH", path, json={"status": "Resolved", "resolutionNotes": "x"}).status == 200


@IN_AZURE
@pytest.mark.parametrize("error", [Unavailable("busy"), Ambiguous("lost"), DbConnectionError("db.example is down")])
def test_3_2_4_a_retry_that_breaks_off_once_begun_says_so(
    bench: Bench, office: Office, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"/api/dlq/{ENGINE}/{buried(bench).row_key}/retry"

    def fail(*given: object, **named: object) -> str:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(StorageQueue, "send", fail)
        answer = office.operator("POST", path)
    assert answer.refusal == (503, "SERVICE_UNAVAILABLE", None)
    message = answer.body["error"]["message"]
    assert "was begun" in message
    assert "nothing was changed" not in message
    assert "db.example" not in message
    assert office.operator("POST", path).status == 200
    assert bench.to_the_end() == [Outcome.SUCCEEDED]


@IN_AZURE
def test_3_2_4_a_queue_that_lets_nobody_in_is_503_and_changes_nothing(
    bench: Bench, office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = buried(bench)

    def refuse(*given: object, **named: object) -> None:
        raise QueueAccessError("The credential may not peek.") from ValueError("403")

    monkeypatch.setattr(StorageQueue, "check", refuse)
    answer = office.operator("POST", f"/api/dlq/{ENGINE}/{found.row_key}/retry")
    assert answer.refusal == (503, "SERVICE_UNAVAILABLE", None)
    assert bench.letters == [found]


@pytest.mark.parametrize("status", ["Resolved", "Expired"])
def test_3_2_1_a_letter_whose_retry_was_begun_is_settled_by_force_only(
    bench: Bench, office: Office, status: str
) -> None:
    found = buried(bench)
    bench.records.letters.begin_retry(ENGINE, found.row_key, "anne", "m-2")
    path = f"/api/dlq/{ENGINE}/{found.row_key}"
    change = {"status": status, "resolutionNotes": "by hand"}
    refused = office.admin("PATCH", path, json=change)
    assert refused.refusal[:2] == (409, "CONFLICT")
    assert "force" in refused.body["error"]["message"]
    forced = {**change, "force": True}
    assert office.operator("PATCH", path, json=forced).refusal == (403, "FORBIDDEN", "force")
    assert office.admin("PATCH", path, json=forced).data["status"] == status
    assert office.admin("PATCH", path, json=forced).refusal[:2] == (409, "CONFLICT")
    row = audit.page(bench.hf.database).items[0]
    assert row.details == {"notes": "by hand", "despite_retry_as": "m-2"}


def test_3_2_4_a_letter_that_is_settled_is_not_retried(bench: Bench, office: Office) -> None:
    found = buried(bench)
    bench.hf.dead_letters.resolve(ENGINE, found.row_key, "by hand", "eve")
    assert office.operator("POST", f"/api/dlq/{ENGINE}/{found.row_key}/retry").refusal[:2] == (409, "CONFLICT")
    assert bench.is_empty


def test_13_10_patch_to_pending_reopens_a_settled_letter(bench: Bench, office: Office) -> None:
    path = f"/api/dlq/{ENGINE}/{buried(bench).row_key}"
    reopening = {"status": "Pending", "resolutionNotes": "too early"}
    assert office.operator("PATCH", path, json=reopening).refusal[:2] == (409, "CONFLICT")
    office.operator("PATCH", path, json={"status": "Expired", "resolutionNotes": "by hand"})
    reopened = office.operator("PATCH", path, json=reopening).data
    assert (reopened["status"], reopened["resolutionNotes"], reopened["resolvedBy"]) == ("Pending", None, None)
    assert "dlq reopen" in [action for _, action, _ in office.audited()]
    assert office.operator("POST", f"{path}/retry").status == 200
    assert office.operator("PATCH", path, json=reopening).refusal[:2] == (409, "CONFLICT")
    assert office.operator("PATCH", path, json={**reopening, "force": True}).status == 403
    assert office.admin("PATCH", path, json={**reopening, "force": True}).data["status"] == "Pending"


def test_13_10_dates_with_seven_digits_of_a_second_are_read(bench: Bench, office: Office) -> None:
    found = buried(bench)
    assert keys(office.reader, fromDate="2001-01-31T12:00:00.1234567Z") == [found.row_key]
    assert keys(office.reader, toDate="2001-01-31T12:00:00.1234567Z") == []
