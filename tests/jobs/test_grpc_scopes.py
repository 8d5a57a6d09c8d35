"""Whose token is for what, and whose claim is whose."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from pydantic import BaseModel

from holdfast.core.bearer import token_hash
from holdfast.core.errors import ConfigurationError, PayloadError
from holdfast.jobs.definition import JobDefinition
from holdfast.jobs.grpc import holdfast_jobs_pb2 as wire
from holdfast.jobs.grpc.calls import SCOPES
from holdfast.jobs.grpc.connection import RemoteConnection
from holdfast.jobs.grpc.security import ANYBODY, Client, Scope, Tokens
from holdfast.jobs.grpc.server import JobsServer
from holdfast.jobs.model import JobId, item_id
from holdfast.jobs.settings import JobSettings
from holdfast.records import audit
from tests.components.ports import HOST
from tests.components.processes import wait_until
from tests.jobs.queues import Queue, open_queue
from tests.jobs.remote import QUICK_SERVER, Remote, Stream, held, report

FILE = """\
{work} name=fleet scope=work
{add} name=shop scope=enqueue topics=email,sms
{all} of the old days
"""
WORK, ADD, ALL = "a-token-to-work", "a-token-to-add", "a-token-for-all"
EMAIL = wire.NewJob(topic="email", operation="send")


@pytest.fixture
def queue(any_url: str) -> Iterator[Queue]:
    with open_queue(any_url) as opened:
        yield opened


@pytest.fixture(
    params=[
        "sqlite_url",
        pytest.param("postgres_url", marks=pytest.mark.component("postgres18")),
        pytest.param("mariadb_url", marks=pytest.mark.component("mariadb")),
    ]
)
def any_url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param))


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    file = tmp_path / "tokens"
    file.write_text(FILE.format(work=token_hash(WORK), add=token_hash(ADD), all=token_hash(ALL)))
    return Tokens.read(file)


@pytest.fixture
def port(queue: Queue, tokens: Tokens) -> Iterator[int]:
    server = JobsServer(queue.store, f"{HOST}:0", tokens=tokens, settings=QUICK_SERVER)
    server.start()
    yield server.port
    server.stop()


@pytest.fixture
def connect(port: int) -> Iterator[Callable[[str], RemoteConnection]]:
    opened = []

    def connecting(token: str) -> RemoteConnection:
        opened.append(RemoteConnection(f"{HOST}:{port}", token=token))
        return opened[-1]

    yield connecting
    for connection in opened:
        connection.close()


def code_of(connection: RemoteConnection, method: str, request: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as raised:
        getattr(connection.stub, method)(request, metadata=connection.metadata, timeout=30)
    error: Any = raised.value
    return error.code(), error.details()


def test_13_15_a_token_file_gives_names_scopes_and_topics(tokens: Tokens) -> None:
    clients = [tokens.client(f"Bearer {token}") for token in (WORK, ADD, ALL, "another", "")]
    assert clients == [
        Client(name="fleet", scopes=frozenset({Scope.WORK})),
        Client(name="shop", scopes=frozenset({Scope.ENQUEUE}), topics=frozenset({"email", "sms"})),
        ANYBODY,
        None,
        None,
    ]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("scop=work", "says 'scop='"),
        ("scope=wrok", "'wrok' is no scope"),
        ("scope=", "'' is no scope"),
        ("name=a/b", "'a/b' cannot be a name"),
        ("topics=", "names no topic"),
        ("topics=engine.hmac", "holds the messages of engines"),
    ],
)
def test_13_15_a_token_file_that_says_something_else_is_refused(tmp_path: Path, words: str, told: str) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"{token_hash('x')} {words}\n")
    with pytest.raises(ConfigurationError, match=told):
        Tokens.read(file)


def test_13_15_every_call_needs_its_scope(connect: Callable[[str], RemoteConnection], queue: Queue) -> None:
    """Before a message of it is read. A call that is not in this table is not known to be guarded."""
    of_work = {
        "Heartbeat": wire.HeartbeatRequest(worker="w"),
        "ReportResult": wire.ReportResultRequest(worker="w"),
        "ReportResults": wire.ReportResultsRequest(worker="w"),
    }
    denied = grpc.StatusCode.PERMISSION_DENIED
    worker, shop = connect(WORK), connect(ADD)
    for method, request in of_work.items():
        assert code_of(shop, method, request) == (
            denied,
            "The token 'shop' is not for 'work'. Give it that scope in the token file, or use another.",
        )
    assert Stream(shop).ended().code() is denied
    assert code_of(worker, "Enqueue", wire.EnqueueRequest(jobs=[EMAIL]))[0] is denied
    foreign = wire.NewJob(topic="billing", operation="send")
    code, details = code_of(shop, "Enqueue", wire.EnqueueRequest(jobs=[EMAIL, foreign]))
    assert (code, "not for the topic 'billing'" in details) == (denied, True)
    assert queue.store.stats() == []
    known = {method.name for method in wire.DESCRIPTOR.services_by_name["Jobs"].methods}
    assert known == {*of_work, "StreamJobs", "Enqueue"} == set(SCOPES)


def test_13_15_a_forged_report_or_beat_is_refused(connect: Callable[[str], RemoteConnection], queue: Queue) -> None:
    job = queue.add()
    owner, enemy = connect(WORK), connect(ALL)
    stream = Stream(owner)
    stream.grant(1)
    [assignment] = stream.until(1)
    guesses = [assignment.receipt, "", "0:job-1", f"1{assignment.receipt[1:]}", "0" + "A" * 24 + ":job-1"]
    for worker in ("w", "fleet:w"):
        for receipt in guesses:
            assignment.receipt = receipt
            beat = wire.HeartbeatRequest(worker=worker, jobs=[held(assignment, progress="1", is_tested=True)])
            assert code_of(enemy, "Heartbeat", beat)[0] is grpc.StatusCode.INVALID_ARGUMENT
            forged = wire.ReportResultRequest(worker=worker, report=report(assignment))
            code, details = code_of(enemy, "ReportResult", forged)
            assert (code, "Copy it from there" in details) == (grpc.StatusCode.INVALID_ARGUMENT, True)
    assert [queue.column(job.id, name) for name in ("locked_by", "progress", "status")] == [
        "remote-fleet:w",
        None,
        "running",
    ]
    assignment.receipt = guesses[0]
    owner.call("ReportResult", wire.ReportResultRequest(worker="w", report=report(assignment)))
    assert queue.status(job.id) is None
    stream.close()


def test_13_15_receipts_are_good_at_every_server_of_a_database(queue: Queue) -> None:
    queue.add()
    first, second = Remote(queue), Remote(queue)
    with first.serving(), first.connection() as connection:
        stream = Stream(connection)
        stream.grant(1)
        [assignment] = stream.until(1)
        stream.close()
    with second.serving(), second.connection() as connection:
        connection.call("ReportResult", wire.ReportResultRequest(worker="w", report=report(assignment)))
    assert queue.status(JobId(assignment.job_id)) is None


def test_13_15_history_names_the_token_of_whoever_had_the_job(
    connect: Callable[[str], RemoteConnection], queue: Queue
) -> None:
    """Whether it succeeded, failed, was told to stop or was lost."""
    done, kept, failed, stopped, lost = (
        queue.add(),
        queue.add(unique_key="k", unique_seconds=60),
        queue.add(max_attempts=1),
        queue.add(),
        queue.add(),
    )
    fleet = connect(WORK)
    stream = Stream(fleet)
    stream.grant(5)
    held_jobs = {assignment.job_id: assignment for assignment in stream.until(5)}
    queue.store.cancel([stopped.id], "enough")
    for job, result in (
        (done, {"succeeded": wire.Succeeded()}),
        (kept, {"succeeded": wire.Succeeded()}),
        (failed, {"failed": wire.Failed(error="no")}),
        (stopped, {"stopped": wire.Stopped()}),
    ):
        ended = wire.ReportResultRequest(worker="w", report=report(held_jobs[job.id], **result))
        fleet.call("ReportResult", ended)
    beat = wire.HeartbeatRequest(worker="w", jobs=[held(held_jobs[lost.id], is_tested=True)])
    fleet.call("Heartbeat", beat)
    stream.close()
    queue.expire(lost.id, held_jobs[lost.id].attempt)
    wait_until(lambda: len(queue.history()) == 5, "the watchdog to find the lost one")
    assert {row["item_id"]: row["worker"] for row in queue.history()} == {
        item_id(job.id): "remote-fleet:w" for job in (done, kept, failed, stopped, lost)
    }


def test_13_15_the_audit_names_the_token_of_whoever_added_jobs(
    connect: Callable[[str], RemoteConnection], queue: Queue
) -> None:
    sms = wire.NewJob(topic="sms", operation="send")
    one = connect(ADD).call("Enqueue", wire.EnqueueRequest(jobs=[EMAIL]))
    connect(ADD).call("Enqueue", wire.EnqueueRequest(jobs=[EMAIL, sms, sms]))
    connect(ALL).call("Enqueue", wire.EnqueueRequest(jobs=[EMAIL]))
    many, single = audit.page(queue.engine).items
    assert (single.actor, single.action, single.target) == ("shop", "jobs enqueue", item_id(one.job.job_id))
    assert (many.actor, many.action, many.target) == ("shop", "jobs enqueue", "email")
    assert (single.details, many.details) == (
        {"topics": ["email"], "added": 1},
        {"topics": ["email", "sms"], "added": 3},
    )


def test_13_15_what_is_not_added_is_not_in_the_audit(connect: Callable[[str], RemoteConnection], queue: Queue) -> None:
    wrong = wire.NewJob(topic="email", operation="send", payload="[]")
    assert code_of(connect(ADD), "Enqueue", wire.EnqueueRequest(jobs=[EMAIL, wrong]))[0] is (
        grpc.StatusCode.INVALID_ARGUMENT
    )
    assert audit.page(queue.engine).items == []


class Order(BaseModel):
    paid: bool
    count: int


def ship(order: Order, weight: float, note: str | None = None) -> None:
    """Do nothing."""


@pytest.mark.parametrize(
    ("payload", "told"),
    [
        ('{"order": {"paid": "yes", "count": 1}, "weight": 1}', "'order.paid'"),
        ('{"order": {"paid": 1, "count": 1}, "weight": 1}', "'order.paid'"),
        ('{"order": {"paid": true, "count": "7"}, "weight": 1}', "'order.count'"),
        ('{"order": {"paid": true, "count": 1}, "weight": 1e999}', "1e999 is too large"),
        ('{"order": {"paid": true, "count": 1}, "weight": NaN}', "NaN is not a JSON value"),
    ],
)
def test_13_15_values_that_an_enqueue_here_refuses_are_refused_from_the_wire(
    queue: Queue, payload: str, told: str
) -> None:
    remote = Remote(queue)
    remote.definitions.append(JobDefinition(ship, topic="email", store=lambda: queue.store))
    with remote.serving(), remote.connection() as connection:
        request = wire.EnqueueRequest(jobs=[wire.NewJob(topic="email", operation="ship", payload=payload)])
        with pytest.raises(PayloadError, match=told):
            connection.call("Enqueue", request)
        good = '{"order": {"paid": true, "count": 1}, "weight": 1}'
        connection.call(
            "Enqueue", wire.EnqueueRequest(jobs=[wire.NewJob(topic="email", operation="ship", payload=good)])
        )
    assert [row["payload"] for row in queue.rows("SELECT payload FROM holdfast_jobs")] == [good]


def test_13_15_a_lease_of_years_is_refused_here_and_from_the_wire(queue: Queue) -> None:
    with pytest.raises(ConfigurationError, match="more than a week"):
        JobSettings(lease_seconds=1e9)
    with Remote(queue).serving() as remote, remote.connection() as connection:
        long = wire.NewJob(topic="email", operation="send", lease_seconds=1e9)
        with pytest.raises(PayloadError, match="more than a week"):
            connection.call("Enqueue", wire.EnqueueRequest(jobs=[long]))
    assert queue.store.stats() == []
