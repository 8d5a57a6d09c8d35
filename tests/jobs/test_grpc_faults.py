"""What networks and restarts do to remote workers: jobs end once, and nothing is lost with a stream or a server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import pytest

from holdfast.jobs.context import JobContext
from holdfast.jobs.grpc import holdfast_jobs_pb2 as wire
from holdfast.jobs.settings import WorkerSettings
from tests.components.processes import wait_until
from tests.components.proxy import FaultProxy
from tests.jobs.queues import Queue, open_queue
from tests.jobs.remote import QUICK_WORKER, Authority, Remote, Stream, handler, held, report


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture
def queue(postgres_url: str) -> Iterator[Queue]:
    with open_queue(postgres_url) as opened:
        yield opened


@pytest.fixture
def remote(queue: Queue, authority: Authority) -> Iterator[Remote]:
    with Remote(queue, authority=authority).serving() as served:
        yield served


class Gate:
    """A handler that begins, and ends when it is let go."""

    def __init__(self) -> None:
        self.runs: list[tuple[int, int]] = []
        self.release = threading.Event()

    def hold(self, context: JobContext) -> str:
        self.runs.append((context.job_id, context.attempt))
        self.release.wait(60)
        return "held"


def test_a_cut_stream_gives_up_no_job(remote: Remote) -> None:
    gate = Gate()
    for _ in range(4):
        remote.queue.add(operation="hold")
    with FaultProxy(remote.port) as proxy, remote.worker([handler(gate.hold)], port=proxy.port):
        wait_until(lambda: len(gate.runs) == 4, "the handlers to begin")
        for _ in range(3):
            proxy.cut()
            wait_until(lambda: proxy.connections > 0, "the worker to connect again")
        gate.release.set()
        remote.until_empty()
    assert sorted(attempt for _, attempt in gate.runs) == [1, 1, 1, 1]
    assert [entry["status"] for entry in remote.queue.history()] == ["Succeeded"] * 4


def test_jobs_go_on_through_a_line_that_is_cut_again_and_again(remote: Remote) -> None:
    ran: list[int] = []
    for n in range(200):
        remote.queue.add(operation="note", payload=json.dumps({"n": n}), lease_seconds=1, max_attempts=None)

    def note(n: int) -> None:
        ran.append(n)

    settings = WorkerSettings(concurrency=4, ahead=20, beat_seconds=0.2, poll_seconds=0.05, drain_seconds=10)
    with FaultProxy(remote.port) as proxy, remote.worker([handler(note)], port=proxy.port, settings=settings):
        for done in range(20, 200, 20):
            wait_until(lambda done=done: len(remote.queue.history()) >= done, f"{done} jobs")  # type: ignore[misc] # a loop's own value
            proxy.cut()
        remote.until_empty()
    ended = [entry["item_id"] for entry in remote.queue.history() if entry["status"] == "Succeeded"]
    assert len(ended) == len(set(ended)) == 200
    assert set(ran) == set(range(200))


def test_what_was_claimed_and_not_delivered_comes_back(remote: Remote) -> None:
    ran: list[int] = []

    def note(context: JobContext) -> None:
        ran.append(context.attempt)

    def connected() -> bool:
        return proxy.connections > 0 and bool(ran)

    remote.queue.add(operation="note")
    with FaultProxy(remote.port) as proxy, remote.worker([handler(note)], port=proxy.port):
        wait_until(connected, "a first job, which shows that there is credit for another")
        remote.until_empty()
        proxy.blackhole()
        lost = remote.queue.add(operation="note")
        wait_until(lambda: remote.queue.status(lost.id) == "running", "the server to claim for the silent stream")
        proxy.cut()
        proxy.pass_through()
        remote.queue.step(60)
        remote.until_empty()
    assert ran == [1, 2]
    assert [entry["attempt"] for entry in remote.queue.history() if entry["status"] == "Succeeded"] == [1, 2]


def test_a_server_that_restarts_takes_nothing_with_it(remote: Remote) -> None:
    gate = Gate()
    for _ in range(2):
        remote.queue.add(operation="hold")
    with remote.worker([handler(gate.hold)]):
        wait_until(lambda: len(gate.runs) == 2, "the handlers to begin")
        remote.stop()
        later = remote.queue.add(operation="hold")
        remote.start()
        wait_until(lambda: len(gate.runs) == 3, "a job from the new server")
        gate.release.set()
        remote.until_empty()
    assert sorted(attempt for _, attempt in gate.runs) == [1, 1, 1]
    assert later.id in {job_id for job_id, _ in gate.runs}


def test_handlers_that_end_while_the_server_is_away_are_reported_later(remote: Remote) -> None:
    gate = Gate()
    remote.queue.add(operation="hold")
    with remote.worker([handler(gate.hold)]):
        wait_until(lambda: bool(gate.runs), "the handler to begin")
        remote.stop()
        gate.release.set()
        remote.start()
        remote.until_empty()
    assert [entry["attempt"] for entry in remote.queue.history()] == [1]


def test_a_report_whose_answer_was_lost_counts_once(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    def told() -> str:
        return "a-result-to-look-for"

    with (
        Remote(queue).serving() as remote,
        FaultProxy(remote.port) as proxy,
        remote.worker([handler(told)], port=proxy.port),
    ):
        sprung = proxy.drop_next_answer(b"a-result-to-look-for")
        remote.queue.add(operation="told")
        assert sprung.wait(30)
        remote.until_empty()
    assert [entry["status"] for entry in queue.history()] == ["Succeeded"]
    assert "is tried again" in caplog.text
    assert "its report was refused" not in caplog.text


def test_a_self_zombie_is_fenced(remote: Remote, caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()
    second = threading.Event()

    def hold(context: JobContext) -> str:
        if context.attempt == 1:
            gate.hold(context)
            return "zombie"
        second.wait(60)
        return "second"

    job = remote.queue.add(operation="hold", max_attempts=None)
    settings = WorkerSettings(concurrency=4, ahead=0, beat_seconds=600, poll_seconds=0.05, drain_seconds=10)
    with remote.worker([handler(hold)], settings=settings):
        wait_until(lambda: bool(gate.runs), "the first attempt")

        def is_second() -> bool:
            remote.queue.expire(job.id, 1)  # each time: a beat on its way may have come first
            return bool(remote.queue.column(job.id, "attempt") == 2)

        wait_until(is_second, "the same worker to get it again")
        gate.release.set()
        wait_until(lambda: f"Job {job.id}, attempt 1, is no longer this worker's" in caplog.text, "the refusal")
        assert remote.queue.status(job.id) == "running"
        second.set()
        wait_until(lambda: remote.queue.status(job.id) is None, "the second attempt to end")
    succeeded = [entry for entry in remote.queue.history() if entry["status"] == "Succeeded"]
    assert [(entry["attempt"], entry["output"]) for entry in succeeded] == [(2, '"second"')]


def test_a_zombies_calls_are_refused_one_by_one(remote: Remote) -> None:
    job = remote.queue.add(max_attempts=None)
    with remote.connection() as connection:
        stream = Stream(connection)
        stream.grant(2)
        [first] = stream.until(1)
        remote.queue.expire(job.id, 1)
        _, second = stream.until(2)
        assert (first.job_id, second.job_id, second.attempt) == (job.id, job.id, 2)
        beats = [held(first), held(second)]
        answer = connection.call("Heartbeat", wire.HeartbeatRequest(worker="w", jobs=beats))
        assert [state.is_held for state in answer.jobs] == [False, True]
        reports = [report(first), report(second)]
        answer = connection.call("ReportResults", wire.ReportResultsRequest(worker="w", reports=reports))
        assert [outcome.is_accepted for outcome in answer.outcomes] == [False, True]
        stream.close()


def test_a_worker_stops_what_it_could_not_keep(remote: Remote) -> None:
    started, lost = threading.Event(), threading.Event()

    def watch(context: JobContext) -> None:
        if not started.is_set():
            started.set()
            if context.lease_lost.wait(60):
                lost.set()

    remote.queue.add(operation="watch", lease_seconds=1, max_attempts=None)
    with FaultProxy(remote.port) as proxy, remote.worker([handler(watch)], port=proxy.port, settings=QUICK_WORKER):
        assert started.wait(60)
        proxy.refuse()
        proxy.cut()
        assert lost.wait(60)
        proxy.pass_through()
        remote.until_empty()
    succeeded = [entry["attempt"] for entry in remote.queue.history() if entry["status"] == "Succeeded"]
    assert len(succeeded) == 1  # the first attempt when its report came before the watchdog, else a later one


def test_a_worker_waits_for_a_server_that_is_not_there_yet(queue: Queue, authority: Authority) -> None:
    ran = threading.Event()
    remote = Remote(queue, authority=authority)
    queue.add(operation="<lambda>")
    with remote.worker([handler(lambda: ran.set())]), remote.serving():
        assert ran.wait(60)
        remote.until_empty()
