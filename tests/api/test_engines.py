"""Engines over HTTP: which there are, and asking one of them for something."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal
from azure.data.tables import TableServiceClient
from azure.storage.queue import QueueServiceClient
from sqlalchemy import text

from holdfast import EngineProvider, Holdfast
from holdfast.engines.azure import AzureStorage
from holdfast.engines.queues.protocol import Received
from holdfast.records import audit
from tests.api.clients import Office
from tests.components.azurite import ACCOUNT, KEY, AzuriteServer
from tests.engines.driving import queue_of
from tests.engines.queues import LateAnswers
from tests.records.samples import count

JSON = {"Content-Type": "application/json"}
MESSAGES = "/api/engines/hmac/messages"


def rotate(context: object, message: object) -> None:
    """Rotate nothing: messages only wait here."""


def declare(hf: Holdfast) -> Holdfast:
    if not hf.engines.declared:
        hf.engine("hmac", queue="hmac-rotation-queue", schedule="0 3 * * *", timezone="Europe/Berlin")(rotate)
        hf.engine("hmac", queue="hmac-rotation-queue", operation="notify", max_retry_attempts=9)(rotate)
        hf.engine("tls", operation="renew", singleton=True)(rotate)
    return hf


@pytest.fixture
def staffed(hf: Holdfast, portal: BlockingPortal) -> Office:
    """An office with engines, over each database."""
    return Office(declare(hf), portal)


@pytest.fixture
def small(small_hf: Holdfast, portal: BlockingPortal) -> Iterator[Office]:
    """An office with engines in which nothing is ever sent, checked afterwards."""
    office = Office(declare(small_hf), portal)
    yield office
    assert count(small_hf.database, "holdfast_jobs") == 0
    assert office.audited() == []


def waiting(hf: Holdfast, engine: str = "hmac") -> list[Any]:
    """The messages in an engine's queue that can be delivered now."""
    received: list[Received] = queue_of(hf, engine).receive(10, 30.0)
    return [json.loads(message.body) for message in received]


class TestListing:
    def test_every_engine_is_told_with_its_operations(self, small: Office) -> None:
        assert small.reader.get("/api/engines").data == {
            "items": [
                {
                    "engine": "hmac",
                    "queue": "hmac-rotation-queue",
                    "operations": [
                        {
                            "operation": "rotate",
                            "singleton": False,
                            "maxRetryAttempts": 5,
                            "schedule": {"cron": "0 3 * * *", "timezone": "Europe/Berlin"},
                        },
                        {"operation": "notify", "singleton": False, "maxRetryAttempts": 9, "schedule": None},
                    ],
                },
                {
                    "engine": "tls",
                    "queue": "tls-queue",
                    "operations": [
                        {"operation": "renew", "singleton": True, "maxRetryAttempts": 5, "schedule": None},
                    ],
                },
            ]
        }

    def test_an_application_without_engines_has_an_empty_list(self, small_office: Office) -> None:
        assert small_office.reader.get("/api/engines").items == []

    def test_it_takes_no_parameters(self, small: Office) -> None:
        assert small.reader.get("/api/engines", engine="hmac").refusal == (400, "VALIDATION_ERROR", "engine")


class TestSending:
    def test_a_message_is_in_the_queue_as_it_was_sent(self, staffed: Office) -> None:
        body = {
            "payload": {"key": ["ü", 1.5, None]},
            "operation": "notify",
            "messageId": "m/1 🦀",
            "correlationId": "order-7",
            "instanceId": "inst-1",
            "causationId": "m-0",
            "traceparent": {"any": "thing"},
        }
        answer = staffed.operator("POST", MESSAGES, json=body)
        assert answer.status == 202
        assert answer.data == {
            "messageId": "m/1 🦀",
            "correlationId": "order-7",
            "engine": "hmac",
            "operation": "notify",
            "queue": "hmac-rotation-queue",
        }
        [sent] = waiting(staffed.hf)
        assert sent.pop("enqueuedAtUtc").endswith("Z")
        assert sent == {**body, "engine": "hmac"}

    def test_what_is_left_out_is_made_up(self, staffed: Office) -> None:
        answer = staffed.operator("POST", MESSAGES, json={"payload": None})
        [sent] = waiting(staffed.hf)
        assert answer.data["operation"] == sent["operation"] == "rotate"
        assert answer.data["messageId"] == sent["messageId"]
        assert answer.data["correlationId"] == sent["correlationId"] == answer.body["correlationId"]
        assert sent["instanceId"] == "publisher"
        other = staffed.operator("POST", MESSAGES, json={"payload": None})
        assert other.data["messageId"] != answer.data["messageId"]
        assert other.data["correlationId"] != answer.data["correlationId"]

    def test_the_requests_correlation_id_goes_on_unless_the_message_has_its_own(self, staffed: Office) -> None:
        brought = {"X-Correlation-Id": "order-7/a"}
        staffed.operator("POST", MESSAGES, json={"payload": 1}, headers=brought)
        own = staffed.operator("POST", MESSAGES, json={"payload": 1, "correlationId": "c-9"}, headers=brought)
        assert own.body["correlationId"] == "order-7/a"
        assert [sent["correlationId"] for sent in waiting(staffed.hf)] == ["order-7/a", "c-9"]

    def test_a_delayed_message_waits(self, staffed: Office) -> None:
        assert staffed.operator("POST", f"{MESSAGES}?delaySeconds=604800", json={"payload": 1}).status == 202
        assert waiting(staffed.hf) == []
        assert count(staffed.hf.database, "holdfast_jobs") == 1
        assert len(staffed.audited()) == 1

    def test_a_message_that_waits_already_is_409_and_not_added_again(self, staffed: Office) -> None:
        assert staffed.operator("POST", MESSAGES, json={"payload": 1, "messageId": "m-1"}).status == 202
        again = staffed.operator("POST", MESSAGES, json={"payload": 2, "messageId": "m-1"})
        assert again.refusal == (409, "CONFLICT", "messageId")
        assert "waits" in again.body["error"]["message"]
        assert [sent["payload"] for sent in waiting(staffed.hf)] == [1]
        assert len(staffed.audited()) == 1

    def test_each_message_has_an_audit_row_without_its_payload(self, staffed: Office) -> None:
        staffed.operator("POST", MESSAGES, json={"payload": "s3cret", "messageId": "m-1", "correlationId": "c-1"})
        [row] = audit.page(staffed.hf.database).items
        assert (row.actor, row.action, row.target) == ("the-operate", "engine send", "hmac/m-1")
        assert row.details == {
            "queue": "hmac-rotation-queue",
            "delay_seconds": 0,
            "operation": "rotate",
            "correlation_id": "c-1",
            "instance_id": "publisher",
        }

    def test_a_message_that_cannot_be_audited_is_not_sent(self, small_hf: Holdfast, portal: BlockingPortal) -> None:
        office = Office(declare(small_hf), portal)
        with small_hf.database.begin() as connection:
            connection.execute(text("DROP TABLE holdfast_audit"))
        for path in (MESSAGES, f"{MESSAGES}?delaySeconds=1"):
            assert office.operator("POST", path, json={"payload": 1}).refusal == (500, "INTERNAL_ERROR", None)
        assert count(small_hf.database, "holdfast_jobs") == 0


class TestBadInput:
    @pytest.mark.parametrize(
        ("body", "target"),
        [
            (b"", "body"),
            (b"{", "body"),
            (b"payload=1", "body"),
            (b"[]", "body"),
            (b'"text"', "body"),
            (b'{"payload": NaN}', "body"),
            (b'{"payload": 1e999}', "body"),
            (b'{"payload": 1, "\\ud800": 2}', "body"),
            (b'{"payload": ' + b"[" * 16 + b"]" * 16 + b"}", "body"),
            (b"{}", "payload"),
            (b'{"payload": 1, "operation": 7}', "operation"),
            (b'{"payload": 1, "operation": ""}', "operation"),
            (b'{"payload": 1, "messageId": 7}', "messageId"),
            (b'{"payload": 1, "messageId": ""}', "messageId"),
            (b'{"payload": 1, "messageId": "a\\u0000b"}', "messageId"),
            (b'{"payload": 1, "messageId": "\\ud800"}', "messageId"),
            (json.dumps({"payload": 1, "messageId": "m" * 201}).encode(), "messageId"),
            (json.dumps({"payload": 1, "correlationId": "c" * 201}).encode(), "correlationId"),
            (json.dumps({"payload": 1, "instanceId": ["inst-1"]}).encode(), "instanceId"),
            (json.dumps({"payload": 1, "causationId": True}).encode(), "causationId"),
            (json.dumps({"payload": 1, "enqueuedAtUtc": "yesterday"}).encode(), "enqueuedAtUtc"),
            (json.dumps({"payload": 1, "engine": "tls"}).encode(), "engine"),
            (json.dumps({"payload": 1, "engine": 7}).encode(), "engine"),
            (json.dumps({"payload": 1, "delaySeconds": 5}).encode(), "delaySeconds"),
            (json.dumps({"payload": 1, "holdfastDequeueCount": 99}).encode(), "holdfastDequeueCount"),
        ],
    )
    def test_what_is_no_message_is_400_and_named(self, small: Office, body: bytes, target: str) -> None:
        assert small.operator("POST", MESSAGES, content=body, headers=JSON).refusal == (
            400,
            "VALIDATION_ERROR",
            target,
        )

    @pytest.mark.parametrize("wrong", ["", "-1", "604801", "soon", "1.5", "1e3", "+1", "9" * 400, "1&delaySeconds=2"])
    def test_a_wrong_delay_is_400(self, small: Office, wrong: str) -> None:
        answer = small.operator("POST", f"{MESSAGES}?delaySeconds={wrong}", json={"payload": 1})
        assert answer.refusal == (400, "VALIDATION_ERROR", "delaySeconds")

    def test_an_unknown_parameter_is_400(self, small: Office) -> None:
        answer = small.operator("POST", f"{MESSAGES}?delay=5", json={"payload": 1})
        assert answer.refusal == (400, "VALIDATION_ERROR", "delay")

    def test_unknown_engines_and_operations_are_404(self, small: Office) -> None:
        ask, known = small.operator, ("hmac, tls", "rotate, notify")
        for path, body, target in (
            ("/api/engines/hmca/messages", {"payload": 1}, "hmca"),
            ("/api/engines/hmac /messages", {"payload": 1}, "hmac "),
            ("/api/engines/HMAC/messages", {"payload": 1, "engine": "hmac"}, "HMAC"),
            (MESSAGES, {"payload": 1, "operation": "rotat"}, "hmac/rotat"),
            (MESSAGES, {"payload": 1, "operation": "renew"}, "hmac/renew"),
        ):
            answer = ask("POST", path, json=body)
            assert answer.refusal == (404, "RESOURCE_NOT_FOUND", target)
            assert known["/" in target] in answer.body["error"]["message"]

    @pytest.mark.parametrize("illegal", ["%5C", "%23", "%3F", "%00", "%0A", "%2F"])
    def test_illegal_characters_in_a_name_are_400(self, small: Office, illegal: str) -> None:
        answer = small.operator("POST", f"/api/engines/h{illegal}c/messages", json={"payload": 1})
        assert answer.refusal[:2] == (400, "VALIDATION_ERROR")

    def test_what_is_too_long_or_too_large_is_refused(self, small: Office) -> None:
        long = small.operator("POST", f"/api/engines/{'e' * 151}/messages", json={"payload": 1})
        assert long.refusal == (400, "VALIDATION_ERROR", "engine")
        large = small.operator("POST", MESSAGES, json={"payload": "x" * 64 * 1024})
        assert large.refusal == (413, "PAYLOAD_TOO_LARGE", "body")

    def test_what_is_not_said_to_be_json_is_415(self, small: Office) -> None:
        answer = small.operator("POST", MESSAGES, content=b'{"payload": 1}', headers={"Content-Type": "text/plain"})
        assert answer.refusal == (415, "UNSUPPORTED_MEDIA_TYPE", "Content-Type")

    def test_a_message_of_the_whole_schema_is_taken(self, staffed: Office) -> None:
        """Also one that was copied from elsewhere: the server's time replaces the one that it has."""
        body = {"payload": 1, "engine": "hmac", "enqueuedAtUtc": "2020-01-01T00:00:00Z", "causationId": None}
        assert staffed.operator("POST", MESSAGES, json=body).status == 202
        [sent] = waiting(staffed.hf)
        assert sent["enqueuedAtUtc"] > "2026"


@pytest.fixture
def afar(sqlite_url: str, portal: BlockingPortal) -> Iterator[Office]:
    """An office whose queues are in a storage account that does not answer."""
    unreachable = "".join(f"{kind}Endpoint=http://127.0.0.1:1/{ACCOUNT};" for kind in ("Queue", "Table"))
    account = AzureStorage.from_connection_string(f"AccountName={ACCOUNT};AccountKey={KEY};{unreachable}")
    provider = EngineProvider()
    Holdfast(sqlite_url, engine_provider=provider).migrate()
    yield Office(declare(Holdfast(sqlite_url, engine_queues=account, engine_provider=provider)), portal)
    provider.dispose_all()
    account.close()


class TestAQueueElsewhere:
    def test_one_that_does_not_answer_is_503_and_not_named(self, afar: Office) -> None:
        answer = afar.operator("POST", MESSAGES, json={"payload": 1, "messageId": "m-1"})
        assert answer.refusal == (503, "SERVICE_UNAVAILABLE", None)
        assert answer.headers["retry-after"] == "1"
        assert "127.0.0.1" not in str(answer.body)
        assert afar.audited() == [("the-operate", "engine send", "hmac/m-1")], "it may have been sent"

    def test_a_message_that_is_too_large_for_it_is_413_and_the_audit_says_that_it_was_not_sent(
        self, afar: Office
    ) -> None:
        answer = afar.operator("POST", MESSAGES, json={"payload": "x" * 50_000, "messageId": "m-1"})
        assert answer.refusal == (413, "PAYLOAD_TOO_LARGE", "body")
        assert "at most 65,536" in answer.body["error"]["message"]
        assert afar.audited() == [
            ("the-operate", "engine send (not done)", "hmac/m-1"),
            ("the-operate", "engine send", "hmac/m-1"),
        ]

    @pytest.mark.component("azurite")
    def test_one_that_gave_up_on_a_message_may_have_taken_it_and_nobody_says_otherwise(
        self, sqlite_url: str, portal: BlockingPortal, azurite: AzuriteServer
    ) -> None:
        transport = LateAnswers()
        queues = QueueServiceClient.from_connection_string(azurite.connection_string, transport=transport)
        account = AzureStorage(queues, TableServiceClient.from_connection_string(azurite.connection_string))
        provider = EngineProvider()
        hf = declare(Holdfast(sqlite_url, engine_queues=account, engine_provider=provider))
        hf.migrate()
        queues.get_queue_client("tls-queue").clear_messages()
        office = Office(hf, portal)
        transport.is_late = True
        answer = office.operator("POST", "/api/engines/tls/messages", json={"payload": 1, "messageId": "m-1"})
        transport.is_late = False
        assert answer.refusal == (503, "SERVICE_UNAVAILABLE", None)
        assert "may or may not" in answer.body["error"]["message"]
        assert office.audited() == [("the-operate", "engine send", "tls/m-1")]
        assert len(waiting(hf, "tls")) == 1
        queues.get_queue_client("tls-queue").clear_messages()
        provider.dispose_all()
        account.close()

    @pytest.mark.component("azurite")
    def test_one_that_is_not_there_is_409(
        self, sqlite_url: str, portal: BlockingPortal, azurite: AzuriteServer
    ) -> None:
        account = AzureStorage.from_connection_string(azurite.connection_string)
        provider = EngineProvider()
        Holdfast(sqlite_url, engine_provider=provider).migrate()
        hf = Holdfast(sqlite_url, engine_queues=account, engine_provider=provider)
        hf.engine("dns", queue="no-such-queue")(rotate)
        office = Office(hf, portal)
        answer = office.operator("POST", "/api/engines/dns/messages", json={"payload": 1})
        assert answer.refusal == (409, "CONFLICT", None)
        assert "There is no queue 'no-such-queue'" in answer.body["error"]["message"]
        assert [action for _, action, _ in office.audited()] == ["engine send (not done)", "engine send"]
        provider.dispose_all()
        account.close()

    def test_what_is_wrong_in_itself_is_not_even_tried(self, afar: Office) -> None:
        assert afar.operator("POST", MESSAGES, json={"payload": 1, "messageId": ""}).refusal[0] == 400
        assert afar.operator("POST", MESSAGES, json={"payload": 1, "operation": "x"}).refusal[0] == 404
        assert afar.audited() == []


class TestIfRunning:
    def test_13_9_a_singleton_whose_registry_is_locked_is_409_and_nothing_is_sent(self, staffed: Office) -> None:
        path, registry = "/api/engines/tls/messages?ifRunning=reject", staffed.hf.registry.instance("tenant-1")
        registry.acquire("maintenance")
        body = {"payload": 1, "instanceId": "tenant-1"}
        assert staffed.operator("POST", path, json=body).refusal == (409, "CONFLICT", "tls-tenant-1")
        assert staffed.audited() == []
        assert staffed.operator("POST", path, json={**body, "instanceId": "tenant-2"}).status == 202
        registry.release("maintenance")
        assert staffed.operator("POST", path, json=body).status == 202

    @pytest.mark.parametrize("asked", ["reject", "perhaps"])
    def test_13_9_only_singletons_can_be_found_running(self, small: Office, asked: str) -> None:
        answer = small.operator("POST", f"{MESSAGES}?ifRunning={asked}", json={"payload": 1})
        assert answer.refusal == (400, "VALIDATION_ERROR", "ifRunning")
