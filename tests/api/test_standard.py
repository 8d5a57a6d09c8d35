"""The standard, rule by rule. Its rules are numbered one lower than its sections: section 3 has rules 2.1 to 2.4."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from fastapi import FastAPI

from holdfast import Holdfast
from holdfast.core.errors import Unavailable
from holdfast.jobs.model import Failure
from holdfast.records import audit
from holdfast.records.dead_letters import DeadLetter, DeadLetters, LetterStatus
from holdfast.records.history import HistoryStatus
from holdfast.records.tables import SqlLetterTable
from tests.api.clients import Client, Office, every_page
from tests.jobs.queues import ANNE, Queue
from tests.records.samples import NOON, add_entry, add_letter, days_ago


def declare_hmac(hf: Holdfast) -> None:
    """Declare the engine that the letters of these tests are of: those of others are not put back."""
    if "hmac" not in hf.engines.declared:
        hf.engine("hmac", queue="hmac-rotation-queue", operation="rotate")(lambda context, message: None)


def buried_job(office: Office, **options: Any) -> DeadLetter:
    """A job that failed for good."""
    queue = Queue(office.hf.database)
    added = queue.add(max_attempts=1, **options)
    [job] = queue.claim(1, topics=(options.get("topic", "email"),))
    queue.store.fail(ANNE, [Failure(job.claim, 5, "no route to host")])
    return DeadLetters(office.hf.database).of_item(f"job-{added.id}")[-1]


def keys(client: Client, path: str, **parameters: Any) -> list[str]:
    return [item["rowKey"] for item in client.get(path, **parameters).items]


def told(moment: Any) -> str:
    return str(moment.isoformat()).replace("+00:00", "Z")


class TestSection2TheDlqTable:
    def test_1_1_every_field_of_the_schema_is_told(self, office: Office) -> None:
        letter = add_letter(office.hf.database, instance_id="inst-1")
        resolved = SqlLetterTable(office.hf.database).resolve("hmac", letter.row_key, "key restored", "eve")
        assert resolved.resolved_at is not None
        assert office.auditor.get(f"/api/dlq/hmac/{letter.row_key}").data == {
            "engine": "hmac",
            "rowKey": letter.row_key,
            "instanceId": "inst-1",
            "originalQueue": "hmac-rotation-queue",
            "originalMessage": '{"key": "ü"}',
            "errorMessage": "vault said no",
            "traceback": None,
            "dequeueCount": 5,
            "firstFailureAtUtc": told(NOON - timedelta(hours=1)),
            "lastFailureAtUtc": told(NOON),
            "status": "Resolved",
            "resolutionNotes": "key restored",
            "resolvedAtUtc": told(resolved.resolved_at),
            "resolvedBy": "eve",
            "correlationId": "c-1",
            "itemId": "m-1",
            "application": None,
            "retriedAs": None,
        }


class TestSection3TheDlqApi:
    def test_2_1_list_and_get(self, office: Office) -> None:
        letter = add_letter(office.hf.database)
        assert keys(office.reader, "/api/dlq") == [letter.row_key]
        assert office.reader.get(f"/api/dlq/hmac/{letter.row_key}").data["status"] == "Pending"

    @pytest.mark.parametrize("status", ["Resolved", "Expired"])
    def test_2_1_patch_settles_a_pending_letter_once_and_says_who(self, office: Office, status: str) -> None:
        letter = add_letter(office.hf.database)
        path, change = f"/api/dlq/hmac/{letter.row_key}", {"status": status, "resolutionNotes": "by hand"}
        settled = office.operator("PATCH", path, json=change).data
        assert (settled["status"], settled["resolutionNotes"], settled["resolvedBy"]) == (
            status,
            "by hand",
            "the-operate",
        )
        assert settled["resolvedAtUtc"] is not None
        found = DeadLetters(office.hf.database).get("hmac", letter.row_key)
        assert found is not None
        assert (found.status, found.resolved_by) == (LetterStatus(status), "the-operate")
        action = "dlq resolve" if status == "Resolved" else "dlq expire"
        assert office.audited() == [("the-operate", action, f"hmac/{letter.row_key}")]
        for second in ("Resolved", "Expired"):
            again = office.operator("PATCH", path, json={"status": second, "resolutionNotes": "me too"})
            assert again.refusal == (409, "CONFLICT", f"hmac/{letter.row_key}")
            assert f"is {status} by the-operate" in again.body["error"]["message"]
        assert DeadLetters(office.hf.database).get("hmac", letter.row_key) == found
        assert len(office.audited()) == 1

    def test_2_1_expire_gives_up_on_old_pending_letters(self, office: Office) -> None:
        old = add_letter(office.hf.database, item="old", last_failure_at=days_ago(40))
        other = add_letter(office.hf.database, item="other", engine="tls", last_failure_at=days_ago(40))
        young = add_letter(office.hf.database, item="young", last_failure_at=days_ago(1))
        body = {"olderThanDays": 30, "engine": "hmac"}
        assert office.operator("POST", "/api/dlq/expire", json=body).data == {"expired": 1}
        assert keys(office.reader, "/api/dlq", status="Expired") == [old.row_key]
        assert office.operator("POST", "/api/dlq/expire", json={"olderThanDays": 30}).data == {"expired": 1}
        assert set(keys(office.reader, "/api/dlq", status="Expired")) == {old.row_key, other.row_key}
        assert keys(office.reader, "/api/dlq", status="Pending") == [young.row_key]
        assert office.audited() == [
            ("the-operate", "dlq expire", "every engine"),
            ("the-operate", "dlq expire", "hmac"),
        ]
        assert office.operator("POST", "/api/dlq/expire", json={"olderThanDays": 30}).data == {"expired": 0}
        assert len(office.audited()) == 2

    def test_2_2_every_query_parameter_narrows(self, office: Office) -> None:
        engine = office.hf.database
        one = add_letter(engine, instance_id="inst-1")
        two = add_letter(
            engine,
            item="m-2",
            engine="tls",
            error_message="Disk 100% full_",
            correlation_id="c-2",
            last_failure_at=NOON + timedelta(hours=1),
        )
        SqlLetterTable(engine).resolve("tls", two.row_key, "new disk", "eve")
        ask = office.reader
        assert keys(ask, "/api/dlq") == [two.row_key, one.row_key]
        assert keys(ask, "/api/dlq", engine="tls") == [two.row_key]
        assert keys(ask, "/api/dlq", status="Pending") == [one.row_key]
        assert keys(ask, "/api/dlq", instanceId="inst-1") == [one.row_key]
        assert keys(ask, "/api/dlq", correlationId="c-2") == [two.row_key]
        assert keys(office.auditor, "/api/dlq", error="disk 100% full_") == [two.row_key]
        assert keys(office.auditor, "/api/dlq", error="disk%full") == []

    def test_2_2_from_date_is_inclusive_and_to_date_is_exclusive(self, office: Office) -> None:
        letter = add_letter(office.hf.database)
        just_after = NOON + timedelta(microseconds=1)
        ask = office.reader
        assert keys(ask, "/api/dlq", fromDate=told(NOON)) == [letter.row_key]
        assert keys(ask, "/api/dlq", fromDate=told(just_after)) == []
        assert keys(ask, "/api/dlq", toDate=told(NOON)) == []
        assert keys(ask, "/api/dlq", toDate=told(just_after)) == [letter.row_key]
        assert keys(ask, "/api/dlq", fromDate=told(NOON), toDate=told(NOON)) == []

    def test_2_2_a_date_is_utc_unless_it_names_a_zone(self, office: Office) -> None:
        letter = add_letter(office.hf.database)  # failed at 12:00:00.123456 UTC
        ask = office.reader
        assert keys(ask, "/api/dlq", fromDate="2026-03-01", toDate="2026-03-02") == [letter.row_key]
        assert keys(ask, "/api/dlq", fromDate="2026-03-01T12:00:00") == [letter.row_key]
        assert keys(ask, "/api/dlq", fromDate="2026-03-01T13:00:00+01:00") == [letter.row_key]
        assert keys(ask, "/api/dlq", fromDate="2026-03-01T12:00:00-01:00") == []

    def test_2_2_limit_is_50_unless_told_and_at_most_100(self, office: Office) -> None:
        for number in range(101):
            add_letter(office.hf.database, item=f"m-{number}")
        assert len(office.reader.get("/api/dlq").items) == 50
        assert len(office.reader.get("/api/dlq", limit=1).items) == 1
        assert len(office.reader.get("/api/dlq", limit=100).items) == 100
        assert office.reader.get("/api/dlq", limit=101).refusal == (400, "VALIDATION_ERROR", "limit")

    def test_2_2_continuation_token_goes_on_behind_the_page(self, office: Office) -> None:
        for number in range(7):
            add_letter(office.hf.database, item=f"m-{number}")
        pages = list(every_page(office.reader, "/api/dlq", limit=3, engine="hmac"))
        assert [len(page) for page in pages] == [3, 3, 1]
        assert len({item["rowKey"] for page in pages for item in page}) == 7

    def test_2_3_the_response_has_the_standards_fields_and_no_others(self, office: Office) -> None:
        letter = add_letter(office.hf.database)
        answer = office.admin.get("/api/dlq")
        assert answer.data == {
            "items": [
                {
                    "engine": "hmac",
                    "rowKey": letter.row_key,
                    "instanceId": "publisher",
                    "originalQueue": "hmac-rotation-queue",
                    "errorMessage": "vault said no",
                    "dequeueCount": 5,
                    "status": "Pending",
                    "firstFailureAtUtc": told(NOON - timedelta(hours=1)),
                    "lastFailureAtUtc": told(NOON),
                    "correlationId": "c-1",
                }
            ],
            "continuationToken": None,
        }

    def test_2_4_retry_enqueues_resolves_as_retried_and_returns_the_message_id(self, office: Office) -> None:
        letter = buried_job(office)
        path = f"/api/dlq/{letter.engine}/{letter.row_key}"
        answer = office.operator("POST", f"{path}/retry").data
        assert answer == {"engine": "jobs:email", "rowKey": letter.row_key, "messageId": letter.item_id}
        assert [job.id for job in Queue(office.hf.database).claim(1, topics=("email",))] == [
            int(str(letter.item_id)[4:])
        ]
        settled = office.reader.get(path).data
        assert (settled["status"], settled["resolutionNotes"]) == ("Resolved", "Retried")
        assert (settled["resolvedBy"], settled["retriedAs"]) == ("the-operate", letter.item_id)
        [row] = audit.page(office.hf.database).items
        assert (row.actor, row.action, row.target) == ("the-operate", "dlq retry", f"jobs:email/{letter.row_key}")

    def test_2_4_the_message_of_an_engine_is_enqueued_under_a_new_id_which_is_returned(self, office: Office) -> None:
        declare_hmac(office.hf)
        letter = add_letter(office.hf.database)
        answer = office.operator("POST", f"/api/dlq/hmac/{letter.row_key}/retry").data
        settled = office.reader.get(f"/api/dlq/hmac/{letter.row_key}").data
        assert settled["retriedAs"] not in (None, letter.item_id)
        assert answer == {"engine": "hmac", "rowKey": letter.row_key, "messageId": settled["retriedAs"]}
        assert office.audited() == [("the-operate", "dlq retry", f"hmac/{letter.row_key}")]

    def test_2_4_the_message_id_is_told_although_nobody_can_look_any_more(
        self, office: Office, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        declare_hmac(office.hf)
        letter = add_letter(office.hf.database)
        looked: list[str] = []
        get = SqlLetterTable.get

        def once(table: SqlLetterTable, engine: str, row_key: str) -> DeadLetter | None:
            looked.append(row_key)
            if len(looked) > 1:
                raise Unavailable("The table does not answer any more.")
            return get(table, engine, row_key)

        with monkeypatch.context() as patched:
            patched.setattr(SqlLetterTable, "get", once)
            answer = office.operator("POST", f"/api/dlq/hmac/{letter.row_key}/retry").data
        settled = office.hf.dead_letters.get("hmac", letter.row_key)
        assert settled is not None
        assert answer["messageId"] == settled.retried_as

    def test_2_4_a_letter_is_retried_once(self, office: Office) -> None:
        letter = buried_job(office)
        path = f"/api/dlq/{letter.engine}/{letter.row_key}/retry"
        assert office.operator("POST", path).status == 200
        assert office.operator("POST", path).refusal == (409, "CONFLICT", f"{letter.engine}/{letter.row_key}")
        assert len(Queue(office.hf.database).claim(9, topics=("email",))) == 1
        assert len(office.audited()) == 1

    def test_2_4_what_has_nowhere_to_go_back_to_stays_pending(self, office: Office) -> None:
        letter = add_letter(office.hf.database, engine="jobs:email", item="job-77")  # in no queue and no history
        answer = office.operator("POST", f"/api/dlq/jobs:email/{letter.row_key}/retry")
        assert answer.refusal == (409, "CONFLICT", f"jobs:email/{letter.row_key}")
        assert office.reader.get(f"/api/dlq/jobs:email/{letter.row_key}").data["status"] == "Pending"
        assert office.audited() == []


def the_entry(office: Office) -> str:
    add_entry(
        office.hf.database,
        instance_id="inst-1",
        input='{"key": 1}',
        output='"ü"',
        created_at=NOON,
        item_id="m-1",
        attempt=3,
    )
    [key] = keys(office.reader, "/api/history")
    return key


class TestSection4TheHistoryTable:
    def test_3_1_every_field_of_the_schema_is_told(self, office: Office) -> None:
        key = the_entry(office)
        assert key.startswith("c-1-20260301T120000123456Z-")
        assert office.auditor.get(f"/api/history/hmac/{key}").data == {
            "engine": "hmac",
            "rowKey": key,
            "instanceId": "inst-1",
            "operation": "rotate",
            "status": "Succeeded",
            "durationMs": 12,
            "input": '{"key": 1}',
            "output": '"ü"',
            "error": None,
            "traceback": None,
            "createdAtUtc": told(NOON),
            "correlationId": "c-1",
            "itemId": "m-1",
            "attempt": 3,
            "worker": None,
            "application": None,
        }


class TestSection5TheHistoryApi:
    def test_4_2_every_query_parameter_narrows(self, office: Office) -> None:
        engine = office.hf.database
        add_entry(engine, created_at=NOON, instance_id="inst-1")
        add_entry(
            engine,
            created_at=NOON + timedelta(hours=1),
            engine="tls",
            operation="renew",
            correlation_id="c-2",
            status=HistoryStatus.FAILED,
            error="CA said no",
        )
        two, one = keys(office.reader, "/api/history")
        ask = office.reader
        assert keys(ask, "/api/history", engine="tls") == [two]
        assert keys(ask, "/api/history", instanceId="inst-1") == [one]
        assert keys(ask, "/api/history", status="Failed") == [two]
        assert keys(ask, "/api/history", operation="rotate") == [one]
        assert keys(ask, "/api/history", correlationId="c-2") == [two]
        assert keys(office.auditor, "/api/history", error="ca SAID") == [two]
        assert keys(ask, "/api/history", fromDate=told(NOON), toDate=told(NOON + timedelta(hours=1))) == [one]
        assert keys(ask, "/api/history", fromDate=told(NOON + timedelta(microseconds=1))) == [two]

    def test_4_2_limit_and_continuation_token(self, office: Office) -> None:
        for _ in range(51):
            add_entry(office.hf.database)
        assert [len(page) for page in every_page(office.reader, "/api/history")] == [50, 1]
        assert [len(page) for page in every_page(office.reader, "/api/history", limit=26)] == [26, 25]

    def test_4_3_the_response_has_the_standards_fields_and_no_others(self, office: Office) -> None:
        key = the_entry(office)
        assert office.admin.get("/api/history").data == {
            "items": [
                {
                    "engine": "hmac",
                    "rowKey": key,
                    "instanceId": "inst-1",
                    "operation": "rotate",
                    "status": "Succeeded",
                    "durationMs": 12,
                    "createdAtUtc": told(NOON),
                    "correlationId": "c-1",
                }
            ],
            "continuationToken": None,
        }


class TestTheEnvelope:
    def test_a_correlation_id_comes_back_and_one_is_made_up_without(self, small_office: Office) -> None:
        brought = small_office.reader("GET", "/api/dlq", headers={"X-Correlation-Id": "order-7/a"})
        assert brought.body["correlationId"] == "order-7/a"
        refused = small_office.reader("GET", "/api/dlq?limit=0", headers={"X-Correlation-Id": "order-8"})
        assert refused.body["correlationId"] == "order-8"
        first, second = (small_office.reader.get("/api/dlq").body["correlationId"] for _ in range(2))
        assert first != second
        assert len(first) == 32

    @pytest.mark.parametrize("wrong", ["", "two words", "x" * 201, "ü"])
    def test_what_is_no_correlation_id_is_refused_and_not_echoed(self, small_office: Office, wrong: str) -> None:
        headers = {"X-Correlation-Id": wrong.encode("latin-1")}
        answer = small_office.reader("GET", "/api/dlq", headers=headers)
        assert answer.refusal == (400, "VALIDATION_ERROR", "X-Correlation-Id")
        assert answer.headers["x-correlation-id"] != wrong

    def test_what_the_framework_refuses_comes_in_the_envelope_too(self, small_office: Office) -> None:
        ask = small_office.admin
        assert ask.get("/").refusal == (404, "RESOURCE_NOT_FOUND", "/")
        assert ask.get("/api/dlq/").refusal == (404, "RESOURCE_NOT_FOUND", "/api/dlq/")
        assert ask("DELETE", "/api/dlq").refusal == (405, "METHOD_NOT_ALLOWED", "/api/dlq")
        assert ask("DELETE", "/api/dlq").headers["allow"] == "GET"
        assert ask("DELETE", "/api/dlq/hmac/key").headers["allow"] == "GET, PATCH"

    def test_the_api_can_be_mounted_below_another_application(self, small_office: Office) -> None:
        letter = add_letter(small_office.hf.database)
        parent = FastAPI()
        parent.mount("/ops", small_office.api)
        reader = replace(small_office.reader, api=parent)
        assert keys(reader, "/ops/api/dlq") == [letter.row_key]
        assert reader.get("/ops/api/nowhere").refusal[:2] == (404, "RESOURCE_NOT_FOUND")
        assert replace(small_office.nobody, api=parent).get("/ops/api/dlq").status == 401
