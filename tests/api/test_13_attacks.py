"""Issue 13, line 14: locked tables, floods and half-sent requests shut nobody else out. Bounded, on loopback only."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
from anyio.from_thread import BlockingPortal
from sqlalchemy import text
from sqlalchemy.engine import Connection
from sqlalchemy.pool import QueuePool

from holdfast import Holdfast
from holdfast.api import RequestLimits, http_protocol
from holdfast.api.health import Health
from holdfast.api.http_protocol import MOST_WAITING, BoundedProtocol
from holdfast.cli.serve import _server
from holdfast.database.statements import family
from tests.api.clients import Client, Office
from tests.api.conftest import application
from tests.components.processes import wait_until
from tests.jobs.remote import Authority
from tests.records.samples import add_letter

SHORT = RequestLimits(deadline_seconds=0.5, body_seconds=0.5, per_caller=12, per_part=2)


@pytest.fixture
def postgres_hf(postgres_url: str) -> Iterator[Holdfast]:
    with application(postgres_url) as made:
        yield made


@pytest.fixture(params=["postgres_url", "mariadb_url"])
def served_hf(request: pytest.FixtureRequest) -> Iterator[Holdfast]:
    with application(request.getfixturevalue(request.param)) as made:
        yield made


_LOCK = {"postgresql": "LOCK TABLE {} IN ACCESS EXCLUSIVE MODE", "mysql": "LOCK TABLES {} WRITE"}
_UNLOCK = {"postgresql": "ROLLBACK", "mysql": "UNLOCK TABLES"}


@contextmanager
def locked(hf: Holdfast, table: str) -> Iterator[Connection]:
    dialect = family(hf.database.dialect.name)
    with hf.database.connect() as connection:
        connection.execute(text(_LOCK[dialect].format(table)))
        yield connection
        connection.execute(text(_UNLOCK[dialect]))
        connection.rollback()
    pool = hf.database.pool
    assert isinstance(pool, QueuePool)
    wait_until(lambda: pool.checkedout() == 0, "requests that were answered without their work to end")


@contextmanager
def serving(office: Office, authority: Authority | None = None) -> Iterator[tuple[str, int]]:
    """Serve as `holdfast serve` does."""
    certificate, key = (None, None) if authority is None else (authority.certificate("server"), authority.key("server"))
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    server = _server(office.api, certificate, key, 0)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    with listener:
        thread.start()
        wait_until(lambda: server.started, "the server to listen")
        try:
            yield listener.getsockname()[:2]
        finally:
            server.should_exit = True
            thread.join(30)


def is_read(client: Client, path: str) -> bool:
    """Return whether a request is answered: one that a busy machine answers too late may be sent again."""
    return client.response("GET", path).status_code == 200


def test_13_14_one_locked_table_does_not_stop_the_others(served_hf: Holdfast, portal: BlockingPortal) -> None:
    office = Office(served_hf, portal, limits=SHORT)
    with locked(served_hf, "holdfast_dead_letters"):
        stuck = [office.reader.start("GET", "/api/dlq") for _ in range(8)]
        wait_until(lambda: is_read(office.reader, "/api/history"), "another table to be read")
        wait_until(lambda: is_read(office.nobody, "/health/ready"), "the server to call itself ready")
        for answer in (each.result(60) for each in stuck):
            assert answer.refusal[:2] == (503, "SERVICE_UNAVAILABLE")
            assert "took longer than 0.5 s" in answer.body["error"]["message"]
        wait_until(lambda: is_read(office.reader, "/api/history"), "another table to be read afterwards")
    wait_until(lambda: is_read(office.reader, "/api/dlq"), "the table to be read again")


def test_13_14_a_late_request_is_logged(
    postgres_hf: Holdfast, portal: BlockingPortal, caplog: pytest.LogCaptureFixture
) -> None:
    office = Office(postgres_hf, portal, limits=SHORT)
    with locked(postgres_hf, "holdfast_dead_letters"):
        assert office.reader.get("/api/dlq").status == 503
    assert "A request to '/api/dlq' took longer than 0.5 s" in caplog.text


def test_13_14_a_caller_has_so_many_requests_at_once_and_others_have_theirs(
    postgres_hf: Holdfast, portal: BlockingPortal
) -> None:
    limits = RequestLimits(deadline_seconds=600, per_caller=12, per_part=2)
    office = Office(postgres_hf, portal, limits=limits)
    with locked(postgres_hf, "holdfast_dead_letters"):
        flood = [office.reader.start("GET", "/api/dlq") for _ in range(limits.per_caller + 5)]
        wait_until(lambda: sum(each.done() for each in flood) == 5, "what is too much to be refused")
        assert office.operator.get("/api/history").status == 200
        assert sum(each.done() for each in flood) == 5
    assert sorted(each.result(60).status for each in flood) == [200] * limits.per_caller + [429] * 5


def test_13_14_one_caller_has_not_all_of_a_part(postgres_hf: Holdfast, portal: BlockingPortal) -> None:
    """Of the same part: its slots are those of everybody."""
    limits = RequestLimits(deadline_seconds=600, per_part=2)
    office = Office(postgres_hf, portal, limits=limits)
    letter = add_letter(postgres_hf.database)
    body = {"status": "Resolved", "resolutionNotes": "by hand"}
    with postgres_hf.database.connect() as connection:
        connection.execute(text("SELECT 1 FROM holdfast_dead_letters FOR UPDATE"))
        address = f"/api/dlq/{letter.engine}/{letter.row_key}"
        flood = [office.operator.start("PATCH", address, json=body) for _ in range(8)]
        assert office.reader.get("/api/dlq").status == 200
        assert not any(answer.done() for answer in flood)
        connection.rollback()
    assert 200 in {answer.result(60).status for answer in flood}


def test_13_14_a_body_that_does_not_come_is_408(small_hf: Holdfast, portal: BlockingPortal) -> None:
    office = Office(small_hf, portal, limits=SHORT)

    async def never() -> AsyncIterator[bytes]:
        yield b'{"olderThanDays": '
        await asyncio.Event().wait()

    headers = {"Content-Type": "application/json"}
    answer = office.operator("POST", "/api/dlq/expire", content=never(), headers=headers)
    assert answer.refusal == (408, "REQUEST_TIMEOUT", "body")


def test_13_14_half_sent_requests_shut_nobody_out(small_office: Office) -> None:
    with serving(small_office) as address, ExitStack() as open_sockets:
        for _ in range(300):
            half = open_sockets.enter_context(socket.create_connection(address, timeout=10))
            half.sendall(b"GET /api/dlq HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        wait_until(lambda: len(BoundedProtocol.waiting) >= MOST_WAITING, "the half-sent requests to arrive")
        assert len(BoundedProtocol.waiting) <= MOST_WAITING
        url = f"http://{address[0]}:{address[1]}"
        headers = {"Authorization": f"Bearer {small_office.reader.token}"}
        assert httpx.get(f"{url}/api/dlq", headers=headers, timeout=30).status_code == 200
        assert httpx.get(f"{url}/health/live", timeout=30).json() == {"status": "ok"}


def test_13_14_headers_that_do_not_come_in_time_end_their_connection(
    small_office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BoundedProtocol, "header_seconds", 0.2)
    with serving(small_office) as address, socket.create_connection(address, timeout=30) as slow:
        slow.sendall(b"GET /api/dlq HTTP/1.1\r\nHost: ")
        assert slow.recv(1) == b""


def test_13_14_a_tls_handshake_that_does_not_come_in_time_ends_its_connection(
    small_office: Office, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "HANDSHAKE_SECONDS", 0.2)
    with (
        serving(small_office, Authority(tmp_path)) as address,
        socket.create_connection(address, timeout=30) as silent,
    ):
        assert silent.recv(1) == b""


def test_13_14_ready_tells_within_its_time_when_the_database_does_not(portal: BlockingPortal) -> None:
    asked, answered = threading.Event(), threading.Event()

    def ask() -> None:
        asked.set()
        answered.wait(60)

    async def statuses() -> list[int]:
        health = Health(ask, seconds=0.1)
        return [(await health.answer(path)).status_code for path in ("/health/live", "/health/ready")]

    assert portal.call(statuses) == [200, 503]
    assert asked.is_set()
    answered.set()


def test_13_14_ready_is_503_without_a_database(portal: BlockingPortal, tmp_path: Path) -> None:
    gone = Office(Holdfast(f"sqlite:///{tmp_path / 'missing' / 'shop.db'}"), portal)
    assert gone.nobody.response("GET", "/health/live").status_code == 200
    assert gone.nobody.response("GET", "/health/ready").status_code == 503
