"""Bad input: the envelope, the right code, and nothing changed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal
from sqlalchemy import text

from holdfast import Holdfast
from holdfast.api.errors import CODES, from_ours
from holdfast.core.errors import (
    Ambiguous,
    ConfigurationError,
    Conflict,
    DbConnectionError,
    DbError,
    NotFoundError,
    Unavailable,
    WriteError,
)
from holdfast.records.dead_letters import DeadLetter, DeadLetters, LetterStatus
from holdfast.records.tables import SqlLetterTable
from tests.api.clients import Answer, Office
from tests.api.conftest import application
from tests.api.test_standard import buried_job
from tests.records.samples import add_entry, add_letter, count

CHANGE = {"status": "Resolved", "resolutionNotes": "by hand"}
JSON = {"Content-Type": "application/json"}
DEEP = '{"a":' * 40 + "1" + "}" * 40


@pytest.fixture(scope="module")
def steady(portal: BlockingPortal, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    """An office with one Pending letter in which nothing ever changes."""
    with application(f"sqlite:///{tmp_path_factory.mktemp('steady') / 'test.db'}") as hf:
        add_letter(hf.database)
        yield Office(hf, portal)


@pytest.fixture
def letter(steady: Office) -> Iterator[DeadLetter]:
    """The Pending letter, checked afterwards to be exactly as it was."""
    [before] = SqlLetterTable(steady.hf.database).page().items
    assert before.status is LetterStatus.PENDING
    yield before
    assert SqlLetterTable(steady.hf.database).page().items == [before]
    assert steady.audited() == []


class TestBodies:
    @pytest.mark.parametrize(
        ("content", "target"),
        [
            (b"", "body"),
            (b"{", "body"),
            (b"status=Resolved", "body"),
            (b'{"status": NaN}', "body"),
            (b"\xff\xfe", "body"),
            (b'"' + b"\\ud800" + b'"', "body"),
            (b"[]", "body"),
            (b"null", "body"),
            (b"1" * 5000, "body"),
            (b"[" * 30_000, "body"),
            (DEEP.encode(), "body"),
            (b"{}", "status"),
            (b'{"status": "Resolved"}', "resolutionNotes"),
            (json.dumps({**CHANGE, "status": "Unknown"}).encode(), "status"),
            (json.dumps({**CHANGE, "status": "resolved"}).encode(), "status"),
            (json.dumps({**CHANGE, "status": ["Resolved"]}).encode(), "status"),
            (json.dumps({**CHANGE, "resolutionNotes": 7}).encode(), "resolutionNotes"),
            (json.dumps({**CHANGE, "resolutionNotes": None}).encode(), "resolutionNotes"),
            (json.dumps({**CHANGE, "resolutionNotes": ""}).encode(), "resolutionNotes"),
            (json.dumps({**CHANGE, "resolutionNotes": "a\x00b"}).encode(), "resolutionNotes"),
            (json.dumps({**CHANGE, "resolutionNotes": "\ud800"}).encode(), "resolutionNotes"),
            (json.dumps({**CHANGE, "resolutionNotes": "x" * 4001}).encode(), "resolutionNotes"),
            (json.dumps({**CHANGE, "resolvedBy": "someone else"}).encode(), "resolvedBy"),
        ],
    )
    def test_what_is_no_change_is_400(self, steady: Office, letter: DeadLetter, content: bytes, target: str) -> None:
        answer = steady.operator("PATCH", f"/api/dlq/hmac/{letter.row_key}", content=content, headers=JSON)
        assert answer.refusal == (400, "VALIDATION_ERROR", target)

    @pytest.mark.parametrize(
        "body",
        [
            {},
            {"olderThanDays": "30"},
            {"olderThanDays": True},
            {"olderThanDays": None},
            {"olderThanDays": -1},
            {"olderThanDays": 36_501},
            {"olderThanDays": 10**400},
            {"olderThanDays": 0, "engine": ""},
            {"olderThanDays": 0, "engine": 7},
            {"olderThanDays": 0, "engine": "e" * 151},
            {"olderThanDays": 0, "engin": "hmac"},
        ],
    )
    def test_a_misspelt_or_wrong_expiry_expires_nothing(
        self, steady: Office, letter: DeadLetter, body: dict[str, Any]
    ) -> None:
        assert steady.operator("POST", "/api/dlq/expire", json=body).refusal[:2] == (400, "VALIDATION_ERROR")

    def test_an_unknown_engine_expires_nothing(self, steady: Office, letter: DeadLetter) -> None:
        body = {"olderThanDays": 0, "engine": "unknown"}
        assert steady.operator("POST", "/api/dlq/expire", json=body).data == {"expired": 0}

    def test_an_oversized_body_is_413(self, steady: Office, letter: DeadLetter) -> None:
        path, content = f"/api/dlq/hmac/{letter.row_key}", json.dumps(CHANGE).encode()

        async def in_chunks() -> Any:
            for _ in range(70):
                yield b" " * 1024
            yield content

        fits = b" " * (64 * 1024 - 2) + b"{}"
        assert steady.operator("PATCH", path, content=fits, headers=JSON).refusal[0] == 400
        for oversized in (b" " + fits, in_chunks()):
            answer = steady.operator("PATCH", path, content=oversized, headers=JSON)
            assert answer.refusal == (413, "PAYLOAD_TOO_LARGE", "body")
        lying = {**JSON, "Content-Length": "9" * 30}
        assert steady.operator("PATCH", path, content=content, headers=lying).refusal[0] == 413

    @pytest.mark.parametrize(
        "kind",
        [
            "text/plain",
            "application/x-www-form-urlencoded",
            "application/json; charset=utf-16",
            "",
            "a/b/c",
            "text/json",
        ],
    )
    def test_what_is_not_said_to_be_json_is_415(self, steady: Office, letter: DeadLetter, kind: str) -> None:
        path, content = f"/api/dlq/hmac/{letter.row_key}", json.dumps(CHANGE).encode()
        answer = steady.operator("PATCH", path, content=content, headers={"Content-Type": kind} if kind else {})
        assert answer.refusal == (415, "UNSUPPORTED_MEDIA_TYPE", "Content-Type")

    def test_a_packed_body_is_415(self, steady: Office, letter: DeadLetter) -> None:
        headers = {**JSON, "Content-Encoding": "gzip"}
        answer = steady.operator("PATCH", f"/api/dlq/hmac/{letter.row_key}", content=b"\x1f\x8b", headers=headers)
        assert answer.refusal[0] == 415

    def test_json_in_utf_8_is_taken_however_it_is_written(self, office: Office) -> None:
        for number, kind in enumerate(["application/json; charset=UTF-8", "APPLICATION/JSON"]):
            made = add_letter(office.hf.database, item=f"m-{number}")
            content = json.dumps({**CHANGE, "resolutionNotes": "🦀 ü"}, ensure_ascii=False).encode()
            path = f"/api/dlq/hmac/{made.row_key}"
            settled = office.operator("PATCH", path, content=content, headers={"Content-Type": kind}).data
            assert settled["resolutionNotes"] == "🦀 ü"


WRONG_PARAMETERS = [
    ("limit=0", "limit"),
    ("limit=101", "limit"),
    ("limit=-1", "limit"),
    ("limit=five", "limit"),
    ("limit=5.0", "limit"),
    ("limit=+5", "limit"),
    ("limit=%205", "limit"),
    ("limit=1_0", "limit"),
    ("limit=", "limit"),
    ("limit=" + "9" * 5000, "limit"),
    ("limit=5&limit=6", "limit"),
    ("status=pending", "status"),
    ("status=Done", "status"),
    ("engine=", "engine"),
    ("engine=%00", "engine"),
    ("engine=" + "e" * 151, "engine"),
    ("instanceId=%00", "instanceId"),
    ("correlationId=" + "c" * 201, "correlationId"),
    ("error=" + "e" * 201, "error"),
    ("fromDate=yesterday", "fromDate"),
    ("fromDate=2026-02-30", "fromDate"),
    ("fromDate=20260301", "fromDate"),
    ("fromDate=2026-03-01T12:00:00+01:00", "fromDate"),  # a bare + is a space
    ("toDate=0001-01-01T00:00:00%2B14:00", "toDate"),
    ("toDate=1772366400", "toDate"),
    ("fromDate=2026-03-02&toDate=2026-03-01", "fromDate"),
    ("fromDate=2026-03-01T12:00:00Z&toDate=2026-03-01T12:00:00%2B01:00", "fromDate"),
    ("continuationToken=", "continuationToken"),
    ("continuationToken=abc", "continuationToken"),
    ("continuationToken=" + "x" * 4097, "continuationToken"),
    ("form=2026-03-01", "form"),
    ("Engine=hmac", "Engine"),
]


@pytest.mark.parametrize(("query", "target"), WRONG_PARAMETERS)
@pytest.mark.parametrize("path", ["/api/dlq", "/api/history"])
def test_a_wrong_parameter_is_400_and_named(steady: Office, path: str, query: str, target: str) -> None:
    assert steady.reader("GET", f"{path}?{query}").refusal == (400, "VALIDATION_ERROR", target)


def test_parameters_that_look_odd_and_are_fine(office: Office) -> None:
    """Among them the one in which Azure Functions takes its key."""
    for query in ("engine=%F0%9F%A6%80", "error=%25_%5C'\"", "instanceId=a/b?c", "fromDate=0001-01-01", "code=abc=="):
        assert office.auditor("GET", f"/api/dlq?{query}").items == []
        assert office.auditor("GET", f"/api/history?{query}").items == []


class TestNames:
    def test_an_unknown_engine_is_an_empty_list_in_a_filter_and_404_in_a_path(self, office: Office) -> None:
        letter = add_letter(office.hf.database)
        add_entry(office.hf.database)
        entry = office.reader.get("/api/history").items[0]["rowKey"]
        for path, key in (("/api/dlq", letter.row_key), ("/api/history", entry)):
            assert office.reader.get(path, engine="unknown").items == []
            assert office.reader.get(f"{path}/unknown/{key}").refusal[:2] == (404, "RESOURCE_NOT_FOUND")
            assert office.reader.get(f"{path}/hmac /{key}").refusal[:2] == (404, "RESOURCE_NOT_FOUND")
            assert office.reader.get(f"{path}/hmac/unknown").refusal == (404, "RESOURCE_NOT_FOUND", "hmac/unknown")
        change = office.operator("PATCH", f"/api/dlq/unknown/{letter.row_key}", json=CHANGE)
        assert change.refusal[:2] == (404, "RESOURCE_NOT_FOUND")
        retry = office.operator("POST", f"/api/dlq/unknown/{letter.row_key}/retry")
        assert retry.refusal[:2] == (404, "RESOURCE_NOT_FOUND")
        assert office.audited() == []

    @pytest.mark.parametrize("illegal", ["%5C", "%23", "%3F", "%00", "%0A", "%7F", "%C2%85", "%2F", "%2f"])
    def test_illegal_characters_in_a_key_are_400(self, steady: Office, letter: DeadLetter, illegal: str) -> None:
        for path in (f"/api/dlq/hmac/a{illegal}b", f"/api/dlq/h{illegal}c/b", f"/api/history/hmac/a{illegal}b"):
            assert steady.reader.get(path).refusal[:2] == (400, "VALIDATION_ERROR")
        path = f"/api/dlq/hmac/{letter.row_key}{illegal}"
        assert steady.operator("PATCH", path, json=CHANGE).refusal[:2] == (400, "VALIDATION_ERROR")
        assert steady.operator("POST", f"{path}/retry").refusal[:2] == (400, "VALIDATION_ERROR")

    def test_a_name_that_is_too_long_is_400(self, steady: Office) -> None:
        assert steady.reader.get(f"/api/dlq/{'e' * 151}/key").refusal == (400, "VALIDATION_ERROR", "engine")
        assert steady.reader.get(f"/api/dlq/hmac/{'k' * 1025}").refusal == (400, "VALIDATION_ERROR", "rowKey")

    def test_every_key_that_a_listing_gives_out_can_be_asked_for(self, office: Office) -> None:
        for item in ("a/b", "50%", "ü 🦀", "x" * 200, "~", "a\nb", "?#\\"):
            add_letter(office.hf.database, item=item, engine="jobs:50% ü")
            add_entry(office.hf.database, correlation_id=item, engine="jobs:50% ü")
        for path in ("/api/dlq", "/api/history"):
            items = office.reader.get(path).items
            assert len(items) == 7
            for key in [item["rowKey"] for item in items]:
                assert office.reader.get(f"{path}/jobs:50%25 ü/{key}").data["rowKey"] == key


def at_once(office: Office, start: Callable[[], Future[Answer]]) -> list[int]:
    """Send the same change six times at the same time, and return the statuses."""
    return sorted(future.result(60).status for future in [start() for _ in range(6)])


class TestTwoAtOnce:
    @pytest.mark.parametrize("status", ["Resolved", "Expired"])
    def test_one_settles_and_the_others_get_409(self, office: Office, status: str) -> None:
        letter = add_letter(office.hf.database)
        change, path = {**CHANGE, "status": status}, f"/api/dlq/hmac/{letter.row_key}"
        statuses = at_once(office, lambda: office.operator.start("PATCH", path, json=dict(change)))
        assert statuses == [200, 409, 409, 409, 409, 409]
        assert len(office.audited()) == 1

    def test_one_retries_and_the_others_get_409(self, office: Office) -> None:
        letter = buried_job(office)
        path = f"/api/dlq/{letter.engine}/{letter.row_key}/retry"
        assert at_once(office, lambda: office.operator.start("POST", path)) == [200, 409, 409, 409, 409, 409]
        assert len(office.audited()) == 1

    def test_what_was_settled_cannot_be_retried_nor_settled_otherwise(self, office: Office) -> None:
        letter = buried_job(office)
        path = f"/api/dlq/{letter.engine}/{letter.row_key}"
        assert office.operator("PATCH", path, json=CHANGE).status == 200
        assert office.operator("POST", f"{path}/retry").refusal[:2] == (409, "CONFLICT")
        assert office.operator("PATCH", path, json={**CHANGE, "status": "Expired"}).refusal[:2] == (409, "CONFLICT")
        assert count(office.hf.database, "holdfast_audit") == 1
        assert DeadLetters(office.hf.database).of_item(str(letter.item_id))[0].status is LetterStatus.RESOLVED


class TestTheServersOwnTroubles:
    @pytest.mark.parametrize(
        ("error", "status", "told"),
        [
            (NotFoundError("There is no registry."), 404, "There is no registry."),
            (Conflict("It is locked."), 409, "It is locked."),
            (Unavailable("db.example was busy"), 503, "nothing was changed"),
            (DbConnectionError("db.example does not answer"), 503, "nothing was changed"),
            (Ambiguous("db.example broke"), 503, "may or may not have been made"),
            (WriteError("db.example refused"), 500, "correlation id"),
            (ConfigurationError("db.example has no tables"), 500, "correlation id"),
        ],
    )
    def test_each_kind_of_error_has_its_status_and_none_names_the_database(
        self, error: DbError, status: int, told: str
    ) -> None:
        answer = from_ours(error)
        assert (answer.status, answer.code) == (status, CODES[status])
        assert told in answer.message
        assert "db.example" not in answer.message

    def test_a_database_that_does_not_answer_is_503_without_its_password(
        self, portal: BlockingPortal, caplog: pytest.LogCaptureFixture
    ) -> None:
        hf = Holdfast("postgresql://app:s3cret@127.0.0.1:1/shop")
        hf.engine("hmac")(lambda context, message: None)
        office = Office(hf, portal)
        for method, path, body in (
            ("GET", "/api/dlq", None),
            ("GET", "/api/history", None),
            ("POST", "/api/dlq/expire", {"olderThanDays": 1}),
            ("PATCH", "/api/dlq/hmac/key", CHANGE),
            ("POST", "/api/dlq/hmac/key/retry", None),
            ("POST", "/api/engines/hmac/messages", {"payload": 1}),
            ("GET", "/api/registry", None),
            ("POST", "/api/registry/lock", {"jobId": "job-7"}),
            ("POST", "/api/registry/unlock", {"jobId": "job-7"}),
            ("PATCH", "/api/registry", {"jobId": "job-7", "changes": {"a": 1}}),
        ):
            answer = office.operator(method, path, json=body)
            assert answer.refusal == (503, "SERVICE_UNAVAILABLE", None)
            assert answer.headers["retry-after"] == "1"
            assert "127.0.0.1" not in str(answer.body)
        assert "s3cret" not in caplog.text
        assert "127.0.0.1:1/shop does not answer" in caplog.text

    def test_missing_tables_are_500_and_the_log_says_what_to_do(
        self, small_office: Office, caplog: pytest.LogCaptureFixture
    ) -> None:
        with small_office.hf.database.begin() as connection:
            connection.execute(text("DROP TABLE holdfast_dead_letters"))
        answer = small_office.reader.get("/api/dlq")
        assert answer.refusal == (500, "INTERNAL_ERROR", None)
        assert "holdfast migrate" in caplog.text
        assert "migrate" not in str(answer.body)

    def test_a_missing_queue_is_500_and_not_the_letters_fault(self, small_office: Office) -> None:
        letter = buried_job(small_office)
        with small_office.hf.database.begin() as connection:
            connection.execute(text("DROP TABLE holdfast_jobs"))
        answer = small_office.operator("POST", f"/api/dlq/{letter.engine}/{letter.row_key}/retry")
        assert answer.refusal == (500, "INTERNAL_ERROR", None)
        assert small_office.audited() == []

    def test_what_nobody_expected_is_500_and_only_the_log_tells_it(
        self, small_hf: Holdfast, portal: BlockingPortal, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Broken:
            dead_letters = small_hf.dead_letters
            history = small_hf.history

            @property
            def redrive(self) -> Any:
                raise LookupError("s3cret")

        office = Office(Broken(), portal)  # type: ignore[arg-type] # of an application the API asks no more
        letter = add_letter(small_hf.database)
        answer = office.operator("POST", f"/api/dlq/hmac/{letter.row_key}/retry", headers={"X-Correlation-Id": "c-9"})
        assert answer.refusal == (500, "INTERNAL_ERROR", None)
        assert "s3cret" not in str(answer.body)
        [record] = [record for record in caplog.records if record.levelname == "ERROR"]
        assert "LookupError" in str(record.exc_info)
        assert record.__dict__["correlation_id"] == "c-9"
