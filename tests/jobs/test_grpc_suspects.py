"""Who is charged when a remote worker is lost, or its server [SUSPECT-1]."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.jobs.grpc import holdfast_jobs_pb2 as wire
from holdfast.jobs.model import JobId
from tests.components.processes import wait_until
from tests.jobs.queues import ANNE, Queue, open_queue
from tests.jobs.remote import Remote, Stream, handler, report


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

    def send() -> None:
        begun.extend(remote.queue.rows("SELECT id FROM holdfast_jobs WHERE begun_attempt = attempt"))

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
