"""Who is let in, who may do what, and what never leaves."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest
from anyio.from_thread import BlockingPortal

from holdfast import Holdfast
from holdfast.api import ApiToken, ApiTokens, Role, create_app, new_token
from holdfast.core.bearer import token_hash
from holdfast.core.errors import ConfigurationError
from tests.api.clients import Client, Office
from tests.api.role_matrix import MATRIX, Row
from tests.records.samples import add_entry, add_letter

CHANGE = {"status": "Resolved", "resolutionNotes": "by hand"}
EXPIRY = {"olderThanDays": 1}


class TestTokens:
    @pytest.mark.parametrize("row", MATRIX, ids=lambda row: f"{row.method} {row.path} {row.role}")
    def test_without_a_token_that_is_accepted_nothing_is_answered(self, small_office: Office, row: Row) -> None:
        token = small_office.tokens[Role.ADMIN]
        for authorization in (
            None,
            "",
            "Bearer",
            "Bearer ",
            "Bearer wrong",
            f"Basic {token}",
            token,
            f"Bearer {token}x",
        ):
            headers = {} if authorization is None else {"Authorization": authorization}
            answer = small_office.nobody(row.method, row.address, headers=headers, json=row.body)
            assert answer.refusal == (401, "UNAUTHORIZED", None)
            assert answer.headers["www-authenticate"] == "Bearer"

    def test_a_hash_is_no_token(self, small_office: Office) -> None:
        hashed = token_hash(small_office.tokens[Role.ADMIN])
        assert small_office.nobody.with_token(hashed).get("/api/dlq").status == 401

    def test_two_tokens_in_one_request_are_none(self, small_office: Office, portal: BlockingPortal) -> None:
        import httpx

        async def ask() -> int:
            token = small_office.tokens[Role.ADMIN]
            transport = httpx.ASGITransport(small_office.api)
            headers = [("Authorization", f"Bearer {token}"), ("Authorization", "Bearer x")]
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
                return (await client.get("/api/dlq", headers=headers)).status_code

        assert portal.call(ask) == 401

    def test_also_what_does_not_exist_and_the_document_need_a_token(self, small_office: Office) -> None:
        for path in ("/", "/api/unknown", "/api/openapi.json", "/docs"):
            assert small_office.nobody.get(path).status == 401
        assert small_office.reader.get("/docs").status == 404

    def test_payloads_are_for_the_role_payload_only(self, small_office: Office) -> None:
        engine = small_office.hf.database
        letter = add_letter(engine)
        add_entry(engine, input='"in"', output='"out"')
        entry = small_office.reader.get("/api/history").items[0]["rowKey"]
        for client, sees in (
            (small_office.reader, False),
            (small_office.operator, False),
            (small_office.auditor, True),
            (small_office.admin, True),
        ):
            assert ("originalMessage" in client.get(f"/api/dlq/hmac/{letter.row_key}").data) is sees
            assert ({"input", "output"} <= client.get(f"/api/history/hmac/{entry}").data.keys()) is sees
        settled = small_office.operator("PATCH", f"/api/dlq/hmac/{letter.row_key}", json=CHANGE).data
        assert "originalMessage" not in settled

    def test_the_audit_names_the_token(self, small_office: Office) -> None:
        letter = add_letter(small_office.hf.database)
        small_office.admin("PATCH", f"/api/dlq/hmac/{letter.row_key}", json=CHANGE)
        assert small_office.audited() == [("the-admin", "dlq resolve", f"hmac/{letter.row_key}")]

    def test_a_name_may_have_two_tokens(self, small_hf: Holdfast, portal: BlockingPortal) -> None:
        old, new = (new_token("anne", [Role.READ]) for _ in range(2))
        client = Client(create_app(small_hf, tokens=ApiTokens([old[1], new[1]])), portal)
        assert [client.with_token(token).get("/api/dlq").status for token, _ in (old, new)] == [200, 200]
        assert old[0] != new[0]


class TestTokenFiles:
    def test_a_line_is_a_hash_a_name_and_roles(self, tmp_path: Path) -> None:
        token, kept = new_token("anne@ops", [Role.OPERATE, Role.PAYLOAD])
        assert kept.line == f"{token_hash(token)} anne@ops operate,payload"
        (tmp_path / "tokens").write_text(f"# people\n\n{kept.line}\n{token_hash('other').upper()} bert READ\n")
        tokens = ApiTokens.read(tmp_path / "tokens")
        anne, bert = tokens.caller(f"Bearer {token}"), tokens.caller("bearer other")
        assert anne is not None
        assert (anne.name, anne.roles) == ("anne@ops", frozenset({Role.OPERATE, Role.PAYLOAD}))
        assert bert is not None
        assert (bert.name, bert.roles) == ("bert", frozenset({Role.READ}))
        assert tokens.caller("Bearer neither") is None

    @pytest.mark.parametrize(
        ("line", "told"),
        [
            ("hf_my-s3cret-token anne read", "does not begin with the SHA-256"),
            (f"{'a' * 64}", "0 words behind the hash"),
            (f"{'a' * 64} anne", "1 words behind the hash"),
            (f"{'a' * 64} anne read operate", "3 words behind the hash"),
            (f"{'a' * 64} anne write", "Choose from read, payload, operate, admin"),
            (f"{'a' * 64} anne read,", "Choose from"),
            (f"{'a' * 64} -anne read", "cannot name a token"),
            ("# nobody", "holds no token"),
        ],
    )
    def test_another_line_is_refused_and_not_shown(self, tmp_path: Path, line: str, told: str) -> None:
        (tmp_path / "tokens").write_text(f"{line}\n")
        with pytest.raises(ConfigurationError, match=told) as raised:
            ApiTokens.read(tmp_path / "tokens")
        assert "s3cret" not in str(raised.value)
        assert "\n" not in str(raised.value)

    def test_a_token_needs_its_hash_and_a_role(self) -> None:
        with pytest.raises(ConfigurationError, match="needs its SHA-256") as raised:
            ApiToken(name="anne", sha256="s3cret", roles=frozenset({Role.READ}))
        assert "s3cret" not in str(raised.value)
        with pytest.raises(ConfigurationError, match="has no role"):
            new_token("anne", [])


class TestWithoutTokens:
    @pytest.fixture
    def local(self, small_hf: Holdfast, portal: BlockingPortal) -> Client:
        return Client(create_app(small_hf, is_loopback=True), portal)

    def test_a_server_that_others_can_reach_is_not_made(self, small_hf: Holdfast) -> None:
        with pytest.raises(ConfigurationError, match="has no tokens"):
            create_app(small_hf)

    def test_whoever_asks_from_this_machine_may_do_everything(self, local: Client, small_hf: Holdfast) -> None:
        letter = add_letter(small_hf.database)
        path = f"/api/dlq/hmac/{letter.row_key}"
        assert "originalMessage" in local.get(path).data
        assert local("PATCH", path, json=CHANGE).data["resolvedBy"] == "loopback"
        for host in ("localhost:8080", "[::1]:8080", "127.0.0.1"):
            assert replace(local, host=host, address="::1").get("/api/dlq").status == 200

    @pytest.mark.parametrize("address", ["10.0.0.1", "2001:db8::1", None])
    def test_others_are_not_let_in(self, local: Client, address: str | None) -> None:
        answer = replace(local, address=address).get("/api/dlq")
        assert answer.status == 401
        assert "has no tokens" in answer.body["error"]["message"]

    @pytest.mark.parametrize(
        "host", ["10.0.0.1:8080", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example"]
    )
    def test_a_name_of_someone_elses_is_not_this_machine(self, local: Client, host: str) -> None:
        """A page whose name was pointed at this machine (DNS rebinding) sends its own name as the host."""
        assert local("GET", "/api/dlq", headers={"Host": host}).status == 401

    @pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded", "X-Real-IP", "Via"])
    def test_what_a_proxy_passes_on_is_not_from_this_machine(self, local: Client, header: str) -> None:
        assert local("GET", "/api/dlq", headers={header: "127.0.0.1"}).status == 401

    def test_with_tokens_this_machine_needs_one_too(self, small_hf: Holdfast, portal: BlockingPortal) -> None:
        office = Office(small_hf, portal, is_loopback=True)
        assert office.nobody.get("/api/dlq").status == 401
        assert office.reader.get("/api/dlq").status == 200


class TestOtherSites:
    @pytest.mark.parametrize(
        "headers",
        [
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},
            {"Origin": "https://evil.example"},
            {"Origin": "null"},
            {"Origin": "http://127.0.0.1:9090"},
            {"Origin": "http://[bad"},
            {"Origin": "https://evil.example", "Sec-Fetch-Site": "same-origin"},
        ],
    )
    def test_a_page_of_another_site_changes_nothing(self, small_office: Office, headers: dict[str, str]) -> None:
        letter = add_letter(small_office.hf.database)
        path = f"/api/dlq/hmac/{letter.row_key}"
        for method, target, body in (
            ("PATCH", path, CHANGE),
            ("POST", f"{path}/retry", None),
            ("POST", "/api/dlq/expire", EXPIRY),
            ("POST", "/api/engines/hmac/messages", {"payload": 1}),
            ("POST", "/api/registry", {}),
            ("POST", "/api/registry/lock", {"jobId": "job-7"}),
        ):
            answer = small_office.admin(method, target, headers=headers, json=body)
            assert answer.refusal == (403, "FORBIDDEN", "Origin")
        assert small_office.audited() == []
        assert "access-control-allow-origin" not in small_office.admin("GET", "/api/dlq", headers=headers).headers

    @pytest.mark.parametrize(
        "headers",
        [{"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"}, {"Origin": "http://127.0.0.1:8080"}],
    )
    def test_our_own_pages_may(self, small_office: Office, headers: dict[str, str]) -> None:
        assert small_office.admin("POST", "/api/dlq/expire", headers=headers, json=EXPIRY).status == 200

    def test_nobody_is_told_that_they_may_ask_from_elsewhere(self, small_office: Office) -> None:
        headers = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
        answer = small_office.admin("OPTIONS", "/api/dlq/expire", headers=headers)
        assert answer.refusal[0] == 405
        assert not any(name.startswith("access-control") for name in answer.headers)


class TestWhatLeaves:
    @pytest.mark.parametrize("path", ["/api/dlq", "/api/dlq?limit=0", "/nowhere", "/api/dlq/hmac/key"])
    def test_every_answer_has_the_headers(self, small_office: Office, path: str) -> None:
        for client in (small_office.reader, small_office.nobody):
            headers = client("GET", path).headers
            assert headers["cache-control"] == "no-store"
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["x-frame-options"] == "DENY"
            assert headers["referrer-policy"] == "no-referrer"
            assert "default-src 'none'" in headers["content-security-policy"]
            assert headers["content-type"] == "application/json"

    def test_the_log_has_who_and_what_but_no_secret(
        self, small_office: Office, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG, "holdfast")
        token = small_office.tokens[Role.PAYLOAD]
        headers = {"X-Correlation-Id": "c-9"}
        small_office.auditor("GET", "/api/dlq?error=private", headers=headers)
        small_office.nobody.with_token("hf_wr0ng").get("/api/dlq%0A/x")
        lines = [record.getMessage() for record in caplog.records]
        assert lines[0].startswith("GET '/api/dlq' by the-payload: 200 in ")
        assert caplog.records[0].__dict__["correlation_id"] == "c-9"
        assert "its token is not accepted" in lines[1]
        assert "by nobody known: 401" in lines[2]
        for secret in (token, token_hash(token), "hf_wr0ng", "private", "\n"):
            assert secret not in "".join(lines)

    def test_a_refusal_does_not_repeat_what_was_sent(self, small_office: Office) -> None:
        small_office.hf.registry.init()
        for answer in (
            small_office.operator("POST", "/api/engines/hmac/messages", json={"payload": 1, "messageId": ["s3cret"]}),
            small_office.operator("POST", "/api/registry/lock", json={"jobId": "s3cret\n"}),
            small_office.operator("PATCH", "/api/registry", json={"jobId": "a", "changes": "s3cret"}),
            small_office.reader("GET", "/api/dlq?limit=s3cret"),
            small_office.reader("GET", "/api/dlq?fromDate=s3cret"),
            small_office.reader("GET", "/api/dlq?continuationToken=s3cret"),
            small_office.admin("POST", "/api/dlq/expire", json={"olderThanDays": "s3cret"}),
            small_office.admin(
                "POST", "/api/dlq/expire", content=b"s3cret", headers={"Content-Type": "application/json"}
            ),
        ):
            assert answer.refusal[0] == 400
            assert "s3cret" not in str(answer.body)
