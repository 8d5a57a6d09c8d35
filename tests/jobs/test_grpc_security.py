"""Who gets in, and what is never said in the clear."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from holdfast.core.bearer import token_hash
from holdfast.core.errors import Ambiguous, ConfigurationError
from holdfast.jobs.grpc import holdfast_jobs_pb2 as wire
from holdfast.jobs.grpc.connection import RemoteConnection
from holdfast.jobs.grpc.security import (
    ClientTls,
    ServerTls,
    Tokens,
    check_listening,
    check_sending,
    is_loopback,
)
from holdfast.jobs.grpc.server import JobsServer, ServerSettings
from holdfast.runtime.housekeeping import Chore
from tests.components.ports import HOST, free_port
from tests.jobs.queues import Queue, open_queue
from tests.jobs.remote import Authority, Remote, Stream

BEAT = wire.HeartbeatRequest(worker="w")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture
def queue(sqlite_url: str) -> Iterator[Queue]:
    with open_queue(sqlite_url) as opened:
        yield opened


@pytest.mark.parametrize("token", [None, "", "wrong", "a-token-of-the-tests-and-more"])
def test_every_call_needs_an_accepted_token(queue: Queue, authority: Authority, token: str | None) -> None:
    with Remote(queue, authority=authority).serving() as remote:
        connection = RemoteConnection(remote.target(), token=token, tls=remote.tls)
        for method, request in (
            ("Heartbeat", BEAT),
            ("ReportResult", wire.ReportResultRequest(worker="w")),
            ("ReportResults", wire.ReportResultsRequest(worker="w")),
            ("Enqueue", wire.EnqueueRequest(jobs=[wire.NewJob(topic="email", operation="send")])),
        ):
            with pytest.raises(grpc.RpcError) as raised:
                getattr(connection.stub, method)(request, metadata=connection.metadata, timeout=30)
            error: Any = raised.value
            assert error.code() is grpc.StatusCode.UNAUTHENTICATED
            assert f"/holdfast.jobs.v1.Jobs/{method} carries" in error.details()
        assert Stream(connection).ended().code() is grpc.StatusCode.UNAUTHENTICATED
        connection.close()
    assert queue.store.stats() == []


def test_the_right_token_gets_in_and_any_of_several_does(queue: Queue, authority: Authority) -> None:
    with Remote(queue, authority=authority).serving() as remote, remote.connection() as connection:
        assert list(connection.call("Heartbeat", BEAT).jobs) == []
    tokens = Tokens.of("one", "two")
    assert [tokens.client(header) is not None for header in ("Bearer two", "bearer one", "one", "Basic one", None)] == [
        True,
        True,
        False,
        False,
        False,
    ]


def test_a_client_that_does_not_trust_the_ca_does_not_connect(
    queue: Queue, authority: Authority, tmp_path: Path
) -> None:
    other = Authority(tmp_path)
    with Remote(queue, authority=authority).serving() as remote:
        connection = RemoteConnection(remote.target(), token=remote.token, tls=other.client_tls)
        with pytest.raises(Ambiguous, match="did not answer"):
            connection.call("Heartbeat", BEAT)
        connection.close()


def test_a_server_can_ask_for_certificates(queue: Queue, authority: Authority) -> None:
    port = free_port()
    server = JobsServer(queue.store, f"{HOST}:{port}", tls=authority.mutual_tls)
    server.start()
    own = ClientTls(
        ca_file=authority.certificate("ca"),
        cert_file=authority.certificate("client"),
        key_file=authority.key("client"),
    )
    try:
        known, unknown = (RemoteConnection(f"{HOST}:{port}", tls=tls) for tls in (own, authority.client_tls))
        assert list(known.call("Heartbeat", BEAT).jobs) == []
        with pytest.raises(Ambiguous):
            unknown.call("Heartbeat", BEAT)
        known.close()
        unknown.close()
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1:1", True),
        ("127.8.8.8:1", True),
        ("localhost:1", True),
        ("[::1]:1", True),
        ("unix:/tmp/x", True),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("10.0.0.1:1", False),
        ("jobs.example:1", False),
        ("dns:///jobs.example:1", False),
        ("localhost.example:1", False),
    ],
)
def test_only_this_machine_is_loopback(address: str, expected: bool) -> None:
    assert is_loopback(address) is expected


@pytest.mark.parametrize(("has_tls", "has_tokens"), [(False, False), (True, False), (False, True)])
def test_a_network_is_served_with_tls_and_tokens_only(has_tls: bool, has_tokens: bool) -> None:
    with pytest.raises(ConfigurationError, match="can be reached from other machines"):
        check_listening("0.0.0.0:1", has_tls=has_tls, has_tokens=has_tokens, is_insecure=False)
    check_listening("0.0.0.0:1", has_tls=has_tls, has_tokens=has_tokens, is_insecure=True)
    check_listening("127.0.0.1:1", has_tls=has_tls, has_tokens=has_tokens, is_insecure=False)
    check_listening("0.0.0.0:1", has_tls=True, has_tokens=True, is_insecure=False)


def test_a_server_refuses_a_network_before_it_listens(queue: Queue) -> None:
    with pytest.raises(ConfigurationError, match="TLS and a token file are missing"):
        JobsServer(queue.store, "0.0.0.0:0")


def test_a_token_is_not_sent_in_the_clear() -> None:
    with pytest.raises(ConfigurationError, match="would travel readable by others"):
        RemoteConnection("jobs.example:50051", token="secret")
    check_sending("jobs.example:50051", has_tls=True, has_token=True, is_insecure=False)
    check_sending("jobs.example:50051", has_tls=False, has_token=False, is_insecure=False)
    check_sending("jobs.example:50051", has_tls=False, has_token=True, is_insecure=True)


def test_a_token_file_holds_hashes_and_notes(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"# workers\n\n{token_hash('one')} the mail workers\n{token_hash('two').upper()}\n")
    tokens = Tokens.read(path)
    assert [tokens.client(f"Bearer {token}") is not None for token in ("one", "two", "three")] == [True, True, False]


def test_a_token_in_the_token_file_is_refused_and_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text("my-secret-token\n")
    with pytest.raises(ConfigurationError, match="Line 1 of the token file") as raised:
        Tokens.read(path)
    assert "my-secret" not in str(raised.value)
    path.write_text("# nothing\n")
    with pytest.raises(ConfigurationError, match="holds no token"):
        Tokens.read(path)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        Tokens.read(tmp_path / "missing")


def test_files_of_tls_that_are_not_there_are_named(queue: Queue, tmp_path: Path) -> None:
    tls = ServerTls(cert_file=tmp_path / "no.pem", key_file=tmp_path / "no.key")
    with pytest.raises(ConfigurationError, match=r"The TLS key .*no\.key cannot be read"):
        JobsServer(queue.store, f"{HOST}:0", tls=tls).start()
    with pytest.raises(ConfigurationError, match="needs its key"):
        ClientTls(cert_file=tmp_path / "no.pem")


def test_a_port_in_use_is_named(queue: Queue) -> None:
    with Remote(queue).serving() as remote:
        second = JobsServer(queue.store, remote.target())
        with pytest.raises(ConfigurationError, match="cannot be listened on"):
            second.start()


def test_a_server_does_the_chores(queue: Queue) -> None:
    done = threading.Event()
    server = JobsServer(queue.store, f"{HOST}:0", chores=[Chore("telling", done.set, 60.0)])
    server.start()
    assert done.wait(30)
    server.stop()


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="above 0"):
        ServerSettings(poll_seconds=0)
    with pytest.raises(ConfigurationError, match="max_message_bytes"):
        ServerSettings(max_message_bytes=1)
