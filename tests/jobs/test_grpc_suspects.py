"""Who is charged when a remote worker is lost, or its server [SUSPECT-1] [ONCE-1]."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.jobs.context import JobContext
from holdfast.jobs.grpc import holdfast_jobs_pb2 as wire
from holdfast.jobs.grpc.connection import RemoteConnection
from holdfast.jobs.model import JobId, TopicLimits
from tests.components.processes import wait_until
from tests.jobs.queues import ANNE, Queue, open_queue
from tests.jobs.remote import Remote, Stream, handler, held, report


@pytest.fixture
def queue(postgres_url: str) -> Iterator[Queue]:
    with open_queue(postgres_url) as opened:
        yield opened


@pytest.fixture
def remote(queue: Queue) -> Iterator[Remote]:
    with Remote(queue).serving() as served:
        yield served


def _suspect(queue: Queue) -> JobId:
    """Return a job whose worker was lost."""
    job_id = queue.add().id
    queue.claim_one(ANNE)
    queue.step(31)
    wait_until(lambda: queue.store.reap() or queue.status(job_id) == "suspect", "its lease to be looked after")
    return job_id


def test_the_death_of_a_remote_worker_marks_what_it_held(remote: Remote) -> None:
    job_id = remote.queue.add(lease_seconds=2).id
    with remote.connection() as connection:
        stream = Stream(connection)
        stream.grant(1)
        stream.until(1)
        stream.close()
    remote.queue.step(3)  # less than what makes a server look dead
    wait_until(lambda: remote.queue.status(job_id) == "suspect", "the server to notice")
    assert (remote.queue.column(job_id, "failures"), remote.queue.column(job_id, "suspicions")) == (0, 1)


def test_the_death_of_the_server_marks_nobody(remote: Remote) -> None:
    job_id = remote.queue.add().id
    with remote.connection() as connection:
        stream = Stream(connection)
        stream.grant(1)
        stream.until(1)
        remote.stop()
    remote.queue.step(31)
    remote.queue.store.reap()
    columns = [remote.queue.column(job_id, name) for name in ("status", "failures", "suspicions")]
    assert columns == ["ready", 0, 0]


def test_servers_that_are_long_gone_are_forgotten(remote: Remote) -> None:
    with remote.connection() as connection:
        stream = Stream(connection)
        wait_until(lambda: remote.queue.rows("SELECT owner FROM holdfast_remote_workers"), "the worker to be noted")
        stream.close()
    remote.stop()
    remote.queue.step(2 * 86_400)
    remote.queue.store.forget_servers()
    assert remote.queue.rows("SELECT owner FROM holdfast_remote_workers") == []
    assert remote.queue.rows("SELECT name FROM holdfast_job_servers") == []


def test_nothing_is_decided_while_the_server_may_still_be_alive(remote: Remote) -> None:
    job_id = remote.queue.add(lease_seconds=1).id
    with remote.connection() as connection:
        stream = Stream(connection)
        stream.grant(1)
        stream.until(1)
        remote.stop()
    remote.queue.step(2)
    assert remote.queue.store.reap() == {}
    remote.queue.step(5)
    remote.queue.store.reap()
    assert remote.queue.status(job_id) == "ready"


def test_a_remote_worker_tests_suspects_itself(remote: Remote, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        _suspect(remote.queue)
    begun = []

    def send(context: JobContext) -> None:
        own = "SELECT id FROM holdfast_jobs WHERE begun_attempt = attempt AND id = :id"
        begun.extend(remote.queue.rows(own, id=context.job_id))

    with remote.worker([handler(send)]):
        remote.until_empty()
    assert len(begun) == 3
    assert caplog.text.count("runs under test") == 3


def test_a_worker_that_tests_no_suspects_is_sent_one_when_it_holds_nothing_else(remote: Remote) -> None:
    remote.queue.add()
    with remote.connection() as connection:
        stream = Stream(connection)
        stream.grant(10)
        [first] = stream.until(1)
        suspect = _suspect_beside(remote.queue, first)
        _, second = stream.until(2)
        assert (second.job_id, second.is_suspect) == (suspect, False)
        assert remote.queue.column(suspect, "begun_attempt") == second.attempt
        remote.queue.add()
        stream_is_still = [item.job_id for item in stream.assignments]
        assert stream_is_still == [first.job_id, suspect]
        request = wire.ReportResultRequest(worker="w", report=report(second))
        connection.stub.ReportResult(request, metadata=connection.metadata, timeout=30)
        assert stream.until(3)[2].job_id not in (first.job_id, suspect)
        stream.close()


def _suspect_beside(queue: Queue, held: wire.JobAssignment) -> JobId:
    """Return a suspect; what the remote worker holds is not lost."""
    job_id = queue.add(operation="lost", topic="other").id
    queue.claim(1, ANNE, ("other",))
    with queue.engine.begin() as connection:
        connection.exec_driver_sql(
            "UPDATE holdfast_jobs SET topic = 'email', lease_until = clock_timestamp() - interval '1 minute'"
            f" WHERE id = {job_id}"
        )
    return job_id


@pytest.mark.parametrize("tests_suspects", [True, False])
def test_a_suspect_that_cannot_be_claimed_keeps_no_job_waiting(
    remote: Remote, tests_suspects: bool, caplog: pytest.LogCaptureFixture
) -> None:
    remote.queue.add("limited")
    remote.queue.claim(topics=("limited",))
    remote.queue.store.set_limits("limited", TopicLimits(max_running=1))
    remote.queue.spoil_limit("limited")
    remote.queue.step(31)
    remote.queue.store.reap()
    with remote.connection() as connection:
        stream = Stream(connection, topics=("limited", "email"), tests_suspects=tests_suspects)
        wait_until(lambda: "Claiming suspects of the topic 'limited' failed" in caplog.text, "the trouble to be told")
        for _ in range(20):
            remote.queue.add()
        stream.grant(20)
        assert {item.topic for item in stream.until(20)} == {"email"}
        stream.close()


@pytest.mark.parametrize("reports_begin", [True, False])
def test_what_may_run_once_and_has_not_begun_is_given_back_if_its_worker_tells(
    remote: Remote, reports_begin: bool
) -> None:
    """[ONCE-1] What was sent to a worker that does not tell may have begun."""
    ids = [remote.queue.add(lease_seconds=2, max_attempts=1).id for _ in range(2)]
    with remote.connection() as connection:
        stream = Stream(connection, tests_suspects=reports_begin)
        stream.grant(2)
        [begun] = [item for item in stream.until(2) if item.job_id == ids[0]]
        if reports_begin:
            _beat(connection, [held(begun, is_tested=True)])
        stream.close()
    remote.queue.step(3)
    wait_until(lambda: remote.queue.dead_letters(), "the server to notice")
    wait_until(lambda: remote.queue.status(ids[1]) != "running", "the server to notice all of it")
    assert [remote.queue.status(job_id) for job_id in ids] == ["dead", "ready" if reports_begin else "dead"]


def _beat(connection: RemoteConnection, jobs: list[wire.HeldJob]) -> wire.HeartbeatResponse:
    answer: wire.HeartbeatResponse = connection.call("Heartbeat", wire.HeartbeatRequest(worker="w", jobs=jobs))
    return answer


@pytest.mark.parametrize("reports_begin", [True, False])
def test_a_worker_may_give_back_what_may_run_once_until_it_tells_that_it_begins(
    remote: Remote, reports_begin: bool
) -> None:
    """[ONCE-1] The word of a worker that does not tell is taken."""
    job_id = remote.queue.add(max_attempts=1).id
    with remote.connection() as connection:
        stream = Stream(connection, tests_suspects=reports_begin)
        stream.grant(1)
        [job] = stream.until(1)
        stream.close()
        put_back = report(job, put_back=wire.PutBack(reason="it stops"))
        if reports_begin:
            _beat(connection, [held(job, is_tested=True)])
        request = wire.ReportResultRequest(worker="w", report=put_back)
        answer = connection.stub.ReportResult(request, metadata=connection.metadata, timeout=30)
    assert answer.outcome.status == ("dead" if reports_begin else "")
    assert remote.queue.status(job_id) == ("dead" if reports_begin else "ready")


def test_a_remote_worker_tells_when_it_begins_with_what_may_run_once(remote: Remote) -> None:
    """[ONCE-1]"""
    begun: list[object] = []

    def send(context: JobContext) -> None:
        own = "SELECT id FROM holdfast_jobs WHERE begun_attempt = attempt AND id = :id"
        begun.extend(remote.queue.rows(own, id=context.job_id))

    for _ in range(3):
        remote.queue.add(max_attempts=1)
    with remote.worker([handler(send)]):
        remote.until_empty()
    assert (len(begun), remote.queue.dead_letters()) == (3, [])
