"""Issue 13, line 14, over gRPC: what one token does, or does not do, keeps nobody else out. On loopback only."""

from __future__ import annotations

import re
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from sqlalchemy import text

from holdfast.core.bearer import token_hash
from holdfast.core.errors import Ambiguous
from holdfast.jobs.grpc import admission
from holdfast.jobs.grpc import holdfast_jobs_pb2 as wire
from holdfast.jobs.grpc import server as jobs_server
from holdfast.jobs.grpc.admission import CallLimits
from holdfast.jobs.grpc.connection import RemoteConnection
from holdfast.jobs.grpc.security import Tokens
from holdfast.jobs.grpc.server import JobsServer, ServerSettings
from tests.components.ports import HOST
from tests.components.processes import PythonWorker, wait_until
from tests.jobs.queues import Queue, open_queue
from tests.jobs.remote import Authority, Stream

FLEET, OTHER, SHOP = "the-fleet", "another-fleet", "the-shop"
FILE = f"""\
{token_hash(FLEET)} name=fleet scope=work
{token_hash(OTHER)} name=other scope=work,enqueue
{token_hash(SHOP)} name=shop scope=enqueue
"""
BEAT = wire.HeartbeatRequest(worker="w")
ADD = wire.EnqueueRequest(jobs=[wire.NewJob(topic="email", operation="send")])
NEVER_SECONDS = 3600.0


@pytest.fixture
def queue(sqlite_url: str) -> Iterator[Queue]:
    with open_queue(sqlite_url) as opened:
        yield opened


@contextmanager
def running(queue: Queue, limits: CallLimits) -> Iterator[JobsServer]:
    settings = ServerSettings(poll_seconds=0.05, watchdog_seconds=0.1, call_limits=limits)
    server = JobsServer(queue.store, f"{HOST}:0", tokens=Tokens.parse(FILE), settings=settings)
    server.start()
    try:
        yield server
    finally:
        server.stop(grace_seconds=0)


@contextmanager
def serving(queue: Queue, **limits: int) -> Iterator[str]:
    """Serve with calls that may take for ever."""
    with running(queue, CallLimits(call_seconds=NEVER_SECONDS, **limits)) as server:
        yield f"{HOST}:{server.port}"


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as things:
        yield things


@pytest.fixture
def target(queue: Queue) -> Iterator[str]:
    with serving(queue) as address:
        yield address


@pytest.fixture
def connect(opened: ExitStack, target: str) -> Callable[[str], RemoteConnection]:
    return lambda token: connection(opened, target, token)


def connection(opened: ExitStack, target: str, token: str) -> RemoteConnection:
    return opened.enter_context(closing(RemoteConnection(target, token=token, timeout_seconds=60)))


def silent(opened: ExitStack, target: str, token: str, method: str, count: int = 40) -> list[Any]:
    """Open calls that carry a token and send no message, all of one connection."""
    over = threading.Event()
    channel = opened.enter_context(grpc.insecure_channel(target))
    opened.callback(over.set)
    metadata = (("authorization", f"Bearer {token}"),)
    call = channel.stream_stream(f"/holdfast.jobs.v1.Jobs/{method}")
    return [call(_never(over), metadata=metadata) for _ in range(count)]


def _never(over: threading.Event) -> Iterator[bytes]:
    over.wait(600)
    yield from ()


def codes(calls: list[Any]) -> set[grpc.StatusCode]:
    wait_until(lambda: all(call.done() for call in calls), "the server to end them")
    return {call.code() for call in calls}


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever gets through does so although silent calls are never given up."""
    monkeypatch.setattr(admission, "READ_SECONDS", NEVER_SECONDS)


@pytest.mark.parametrize("method", ["Heartbeat", "ReportResult", "ReportResults", "StreamJobs"])
def test_13_14_a_token_that_is_not_for_a_call_is_refused_before_anything_is_read(
    target: str, patient: None, opened: ExitStack, method: str
) -> None:
    assert codes(silent(opened, target, SHOP, method)) == {grpc.StatusCode.PERMISSION_DENIED}


def test_13_14_silent_calls_of_one_token_keep_no_other_waiting(
    target: str, patient: None, opened: ExitStack, connect: Callable[[str], RemoteConnection], queue: Queue
) -> None:
    held = [call for method in ("Heartbeat", "StreamJobs", "Enqueue") for call in silent(opened, target, OTHER, method)]
    fleet, shop = connect(FLEET), connect(SHOP)
    for _ in range(5):
        fleet.call("Heartbeat", BEAT)
        assert shop.call("Enqueue", ADD).added == 1
    stream = Stream(fleet)
    stream.grant(5)
    stream.until(5)
    stream.close()
    assert not any(call.done() for call in held)


def test_13_14_calls_and_streams_that_send_nothing_are_given_up(
    target: str, opened: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "READ_SECONDS", 0.1)
    for method in ("Heartbeat", "StreamJobs", "Enqueue"):
        assert codes(silent(opened, target, OTHER, method, count=4)) == {grpc.StatusCode.DEADLINE_EXCEEDED}


@pytest.mark.parametrize("method", ["Heartbeat", "StreamJobs"])
def test_13_14_a_token_has_so_much_open_and_others_have_theirs(
    queue: Queue, patient: None, opened: ExitStack, method: str
) -> None:
    with serving(queue, open_calls_of_one=4, streams_of_one=4) as target, opened:
        held = silent(opened, target, OTHER, method, count=6)
        wait_until(lambda: sum(call.done() for call in held) >= 2, "the server to refuse what is too much")
        refused = [call for call in held if call.done()]
        assert {call.code() for call in refused} == {grpc.StatusCode.UNAVAILABLE}
        assert "4 " in refused[0].details()
        assert "open, which is the most for one" in refused[0].details()
        assert len(refused) == 2
        fleet = connection(opened, target, FLEET)
        fleet.call("Heartbeat", BEAT)
        queue.add()
        stream = Stream(fleet)
        stream.grant(1)
        stream.until(1)
        stream.close()


def test_13_14_a_tls_handshake_that_does_not_come_in_time_ends_its_connection(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_server, "HANDSHAKE_SECONDS", 0.2)
    served = JobsServer(queue.store, f"{HOST}:0", tls=Authority(tmp_path).server_tls)
    served.start()
    with socket.create_connection((HOST, served.port), timeout=30) as silent:
        while silent.recv(100):  # what the server says first
            pass
    served.stop(grace_seconds=0)


@pytest.fixture
def locked_queue(postgres_url: str) -> Iterator[Queue]:
    with open_queue(postgres_url) as found:
        yield found


@contextmanager
def locked(queue: Queue) -> Iterator[None]:
    with queue.engine.connect() as connection:
        connection.execute(text("LOCK TABLE holdfast_jobs IN ACCESS EXCLUSIVE MODE"))
        yield
        connection.rollback()


@pytest.mark.component("postgres18")
def test_13_14_a_call_that_a_locked_table_holds_up_is_answered_and_logged(
    locked_queue: Queue, opened: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    with running(locked_queue, CallLimits(call_seconds=0.3)) as server:
        shop = connection(opened, f"{HOST}:{server.port}", SHOP)
        with locked(locked_queue):
            answers = [shop.stub.Enqueue.future(ADD, timeout=60, metadata=shop.metadata) for _ in range(6)]
            assert codes(answers) == {grpc.StatusCode.DEADLINE_EXCEEDED}
        told = Counter(answer.details() for answer in answers)
        begun = told["The call was not answered within 0.3 s. It goes on, and may be carried out yet. Repeat it."]
        assert begun + told["The call was not answered within 0.3 s. It was not begun. Repeat it."] == 6
        assert begun <= 3
        assert caplog.text.count("took longer than 0.3 s and was answered without it") == begun
        wait_until(lambda: _added(locked_queue) == begun, "what had begun to be carried out, and nothing else")
        wait_until(lambda: _is_added(shop), "the places to be free again")


@pytest.mark.component("postgres18")
def test_13_14_calls_that_are_given_up_do_not_pile_up_behind_a_locked_table(
    locked_queue: Queue, opened: ExitStack
) -> None:
    with running(locked_queue, CallLimits(call_seconds=NEVER_SECONDS)) as server:
        shop = connection(opened, f"{HOST}:{server.port}", SHOP)
        with locked(locked_queue):
            for _ in range(10):
                answers = [shop.stub.Enqueue.future(ADD, timeout=0.1, metadata=shop.metadata) for _ in range(3)]
                assert codes(answers) == {grpc.StatusCode.DEADLINE_EXCEEDED}
            waiting = server._claims._work_queue.qsize()
        assert waiting == 0  # the three that a token may have are on threads
        assert _is_added(shop)
        assert _added(locked_queue) <= 4


def _added(queue: Queue) -> int:
    return len(queue.rows("SELECT id FROM holdfast_jobs"))


def _is_added(shop: RemoteConnection) -> bool:
    with suppress(Ambiguous):
        return bool(shop.call("Enqueue", ADD).added == 1)
    return False


SERVER = """
import sys
from holdfast import Holdfast
from holdfast.cli.main import run_command
hf = Holdfast({url!r})
hf.migrate()
sys.modules["app_under_test"] = sys.modules["__main__"]
sys.exit(run_command(["jobs-server", "app_under_test:hf", "--listen", "127.0.0.1:0"]))
"""


def test_13_14_many_large_calls_at_once_do_not_fill_the_memory(sqlite_url: str) -> None:
    """100 calls of 7 MiB: what they bring is read a few at a time, and not kept."""
    calls, large = 100, 7 * 1024 * 1024
    request = wire.EnqueueRequest(jobs=[wire.NewJob(topic="email", operation="send", payload="x" * large)])
    with PythonWorker("-c", SERVER.format(url=sqlite_url)) as server:
        found = re.search(r"127\.0\.0\.1:\d+", server.wait_for_line("Serving remote workers on"))
        assert found is not None
        before = _most_memory(server.pid)
        connection = RemoteConnection(found[0])
        with ThreadPoolExecutor(calls) as threads:
            answers = [threads.submit(_code_of_adding, connection, request) for _ in range(calls)]
            found_codes = {answer.result() for answer in answers}
        connection.close()
        grown = _most_memory(server.pid) - before
    assert found_codes <= {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.DEADLINE_EXCEEDED}
    assert grown < CallLimits().calls * large * 6  # about 150 MiB are; messages kept until a garbage collection: 750


def _code_of_adding(connection: RemoteConnection, request: wire.EnqueueRequest) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as raised:
        connection.stub.Enqueue(request, timeout=60)
    error: Any = raised.value
    code: grpc.StatusCode = error.code()
    return code


def _most_memory(pid: int) -> int:
    """Return the most that a process has had in memory, in bytes."""
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024
