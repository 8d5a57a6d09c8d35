"""Issue 13, line 16: tokens expire, their file is read again, and who is not let in is logged: over HTTP and gRPC."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import cached_property
from pathlib import Path

import grpc
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from holdfast import Holdfast
from holdfast.api import ApiTokens, Role, create_app
from holdfast.core.bearer import token_hash
from holdfast.core.errors import ConfigurationError
from holdfast.jobs.grpc import holdfast_jobs_pb2 as wire
from holdfast.jobs.grpc.connection import RemoteConnection
from holdfast.jobs.grpc.security import Tokens
from holdfast.jobs.grpc.server import JobsServer
from tests.api.clients import Client
from tests.api.conftest import application
from tests.components.ports import HOST
from tests.components.prepared import sqlite_url as sqlite_url
from tests.jobs.remote import QUICK_SERVER, Stream

BEAT = wire.HeartbeatRequest(worker="w")


class Served(ABC):
    """A server whose tokens are in a file, and what a line of the file says behind the hash."""

    kind: type[ApiTokens] | type[Tokens]
    said: str
    what: str

    def __init__(self, hf: Holdfast, file: Path, open_things: ExitStack) -> None:
        self.hf = hf
        self.file = file
        self.open_things = open_things

    def write(self, *lines: str) -> None:
        """Write the file: on each line a token, and what is said besides."""
        told = [(token, " ".join(more)) for token, *more in (line.split() for line in lines)]
        self.file.write_text("\n".join(f"{token_hash(token)} {self.said} {more}" for token, more in told))

    @abstractmethod
    def lets_in(self, token: str) -> bool:
        """Send something with the token; return whether it was answered."""


class ServedHttp(Served):
    kind, said, what = ApiTokens, "anne read", "request"

    @cached_property
    def client(self) -> Client:
        portal: BlockingPortal = self.open_things.enter_context(start_blocking_portal())
        return Client(create_app(self.hf, tokens=ApiTokens.read(self.file), rate_limit=None), portal)

    def lets_in(self, token: str) -> bool:
        status = self.client.with_token(token).get("/api/dlq").status
        assert status in (200, 401)
        return status == 200


class ServedGrpc(Served):
    kind, said, what = Tokens, "name=anne scope=work", "call"

    @cached_property
    def target(self) -> str:
        tokens = Tokens.read(self.file)
        server = JobsServer(self.hf.jobs.store, f"{HOST}:0", tokens=tokens, settings=QUICK_SERVER)
        server.start()
        self.open_things.callback(server.stop)
        return f"{HOST}:{server.port}"

    def connect(self, token: str) -> RemoteConnection:
        opened = RemoteConnection(self.target, token=token, timeout_seconds=30)
        self.open_things.callback(opened.close)
        return opened

    def lets_in(self, token: str) -> bool:
        with suppress(ConfigurationError):
            self.connect(token).call("Heartbeat", BEAT)
            return True
        return False


@pytest.fixture
def open_things() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def hf(sqlite_url: str) -> Iterator[Holdfast]:
    with application(sqlite_url) as made:
        yield made


@pytest.fixture(params=[ServedHttp, ServedGrpc], ids=["http", "grpc"])
def served(request: pytest.FixtureRequest, hf: Holdfast, tmp_path: Path, open_things: ExitStack) -> Served:
    found: Served = request.param(hf, tmp_path / "tokens", open_things)
    return found


def test_13_16_a_token_that_has_expired_lets_nobody_in(served: Served) -> None:
    served.write("old expires=2020-01-31", "new expires=2999-01-31", "moment expires=2020-01-31T12:00:00+01:00")
    assert [served.lets_in(token) for token in ("old", "new", "moment")] == [False, True, False]


def test_13_16_a_token_that_expires_at_no_date_is_refused_with_its_file(served: Served) -> None:
    served.write("x expires=soon")
    with pytest.raises(ConfigurationError, match=r"Line 1 of .* expires at no date.*expires=2027-01-31"):
        served.kind.read(served.file)


def test_13_16_the_token_file_is_read_again_when_it_changes(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    served.write("first")
    assert [served.lets_in(token) for token in ("first", "second")] == [True, False]
    served.write("second expires=2999-01-31")
    assert [served.lets_in(token) for token in ("first", "second")] == [False, True]
    served.file.write_text("no token at all\n")
    assert served.lets_in("second")
    served.file.unlink()
    assert served.lets_in("second")
    assert caplog.text.count("so the tokens stay as they were") == 2


def test_13_16_who_is_not_let_in_is_logged_with_the_rate_and_without_the_token(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    served.write("right")
    caplog.set_level(logging.INFO, "holdfast")
    assert not any(served.lets_in("hf_wr0ng-token") for _ in range(11))
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert lines == [
        f"A {served.what} from 127.0.0.1 was refused: its token is not accepted ({count} from there within 60 s)."
        for count in (1, 10)
    ]
    assert "wr0ng" not in caplog.text


@pytest.mark.parametrize("taken", ["gone", "for less"])
def test_13_16_a_stream_ends_when_its_token_is_taken_back(
    hf: Holdfast, tmp_path: Path, open_things: ExitStack, taken: str
) -> None:
    grpc_only = ServedGrpc(hf, tmp_path / "tokens", open_things)
    grpc_only.write("other", "first topics=email,sms")
    stream = Stream(grpc_only.connect("first"), topics=["email", "sms"])
    stream.grant(1)
    assert grpc_only.lets_in("first")
    grpc_only.write("other", *([] if taken == "gone" else ["first topics=email"]))
    expected = grpc.StatusCode.UNAUTHENTICATED if taken == "gone" else grpc.StatusCode.PERMISSION_DENIED
    assert stream.ended().code() is expected


@pytest.mark.parametrize("words", ["anne read", "anne operate,payload expires=2999-01-31", "bert ADMIN"])
def test_13_16_a_line_of_the_http_api_gives_nothing_over_grpc(tmp_path: Path, words: str) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"{token_hash('x')} {words}\n")
    assert ApiTokens.read(file).caller("Bearer x") is not None
    with pytest.raises(ConfigurationError, match=r"Line 1 of .* says '.*', as lines of the HTTP API's token file do"):
        Tokens.read(file)
    file.write_text(f"{token_hash('x')} {words} scope=work\n")  # who says so may
    assert Tokens.read(file).client("Bearer x") is not None


@pytest.mark.parametrize("role", Role)
def test_13_16_every_role_of_the_http_api_is_known_by_its_word(tmp_path: Path, role: Role) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"{token_hash('x')} {role}\n")
    with pytest.raises(ConfigurationError, match=f"says '{role}'"):
        Tokens.read(file)
