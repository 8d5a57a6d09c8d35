"""What a remote worker promises: the same as one beside the database, but for transactions."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from datetime import UTC
from typing import Any

import pytest

from holdfast.core.errors import ConfigurationError, PayloadError
from holdfast.jobs.context import JobContext
from holdfast.jobs.grpc.client import RemoteWorker
from holdfast.jobs.outcomes import Discard, Retry, Snooze
from holdfast.jobs.settings import WorkerSettings, limits_of
from tests.components.processes import wait_until
from tests.jobs.queues import Queue
from tests.jobs.remote import Authority, Remote, handler

QUICKLY: dict[str, Any] = {"retry_base_seconds": 0.01, "retry_max_seconds": 0.02}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture
def remote(queue: Queue, authority: Authority) -> Iterator[Remote]:
    with Remote(queue, authority=authority).serving() as served:
        yield served


def test_jobs_run_over_tls_and_become_history_with_their_results(remote: Remote) -> None:
    def double(n: int) -> dict[str, int]:
        return {"twice": 2 * n}

    with remote.enqueuing() as queue:
        assert queue.enqueue_many("email", "double", ({"n": n} for n in range(50))) == 50
    with remote.worker([handler(double)]):
        remote.until_empty()
    outputs = sorted(json.loads(entry["output"])["twice"] for entry in remote.queue.history())
    assert outputs == [2 * n for n in range(50)]
    assert {entry["status"] for entry in remote.queue.history()} == {"Succeeded"}


def test_short_jobs_are_fetched_ahead_and_none_is_lost(remote: Remote) -> None:
    ran: list[int] = []
    with remote.enqueuing() as queue:
        queue.enqueue_many("email", "note", ({"n": n} for n in range(500)))

    def note(n: int) -> None:
        ran.append(n)

    with remote.worker([handler(note)], settings=WorkerSettings(concurrency=2, ahead=100, poll_seconds=0.05)):
        remote.until_empty()
    assert sorted(ran) == list(range(500))


@pytest.mark.parametrize("is_async", [False, True])
def test_what_a_handler_raises_decides(remote: Remote, is_async: bool) -> None:
    seen: dict[str, int] = {}

    def decide(context: JobContext, what: str) -> None:
        seen[what] = seen.get(what, 0) + 1
        if what == "retry" and context.attempt == 1:
            raise Retry("not yet", in_seconds=0)
        if what == "snooze" and context.attempt < 4:
            raise Snooze(in_seconds=0)
        if what == "discard":
            raise Discard("never")
        if what == "fail":
            raise ValueError("no\0 good")

    async def decide_async(context: JobContext, what: str) -> None:
        await asyncio.sleep(0)
        decide(context, what)

    function = decide_async if is_async else decide
    for what in ("retry", "snooze", "discard", "fail"):
        remote.queue.add(operation=function.__name__, payload=json.dumps({"what": what}), max_attempts=2, **QUICKLY)
    with remote.worker([handler(function)]):
        remote.until_empty()
    assert seen == {"retry": 2, "snooze": 4, "discard": 1, "fail": 2}
    errors = sorted(letter["error_message"] for letter in remote.queue.dead_letters())
    assert errors == ["ValueError: no\N{REPLACEMENT CHARACTER} good", "never"]


def test_a_handler_knows_its_job(remote: Remote) -> None:
    seen: list[JobContext] = []

    def look(context: JobContext) -> None:
        seen.append(context)

    with remote.enqueuing() as queue:
        added = queue.enqueue(
            "email",
            "look",
            priority=7,
            max_attempts=0,
            lease_seconds=12.5,
            correlation_id="order-1",
            instance_id="shop-3",
            tags=["red", "blue"],
            delay_seconds=0.01,
        )
    with remote.worker([handler(look)]):
        remote.until_empty()
    [context] = seen
    assert (context.job_id, context.attempt, context.failures) == (added.id, 1, 0)
    assert (context.topic, context.operation, context.max_attempts) == ("email", "look", None)
    assert (context.correlation_id, context.instance_id, context.tags) == ("order-1", "shop-3", ["red", "blue"])
    assert context.run_at is not None
    assert (context.run_at.tzinfo, context.created_at.tzinfo) == (UTC, UTC)


def test_there_is_no_transaction(remote: Remote) -> None:
    def write(context: JobContext) -> None:
        context.transaction.execute("SELECT 1")

    remote.queue.add(operation="write", max_attempts=1)
    with remote.worker([handler(write)]):
        remote.until_empty()
    assert "a remote worker has no access to one" in remote.queue.dead_letters()[0]["error_message"]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_cancelled_job_stops(remote: Remote, is_async: bool) -> None:
    started = threading.Event()

    def loop(context: JobContext) -> None:
        started.set()
        while True:
            context.cancelled.wait(0.01)
            context.raise_if_stopped()

    async def wait(context: JobContext) -> None:
        started.set()
        await asyncio.sleep(600)

    function = wait if is_async else loop
    added = remote.queue.add(operation=function.__name__)
    with remote.worker([handler(function)]):
        assert started.wait(30)
        remote.queue.store.cancel([added.id], "changed my mind")
        wait_until(lambda: remote.queue.status(added.id) == "cancelled", "the job to stop")
    assert remote.queue.history()[0]["error"] == "cancelled: changed my mind"


def test_progress_can_be_seen_while_a_job_runs(remote: Remote) -> None:
    told, release = threading.Event(), threading.Event()

    def steps(context: JobContext) -> None:
        context.heartbeat(progress={"done": 3, "of": 10})
        told.set()
        release.wait(30)

    added = remote.queue.add(operation="steps")
    with remote.worker([handler(steps)]):
        assert told.wait(30)
        assert json.loads(remote.queue.column(added.id, "progress")) == {"done": 3, "of": 10}
        release.set()
        remote.until_empty()


def test_a_long_job_keeps_its_lease(remote: Remote) -> None:
    runs, release = [], threading.Event()

    def slow(context: JobContext) -> None:
        runs.append(context.attempt)
        release.wait(30)

    leases: set[str] = set()

    def has_beaten() -> bool:
        leases.add(str(remote.queue.rows("SELECT lease_until FROM holdfast_jobs")[0]["lease_until"]))
        return len(leases) >= 6

    remote.queue.add(operation="slow", lease_seconds=1)
    with remote.worker([handler(slow)], settings=WorkerSettings(concurrency=1, ahead=0)):
        wait_until(lambda: bool(runs), "the job to start")
        wait_until(has_beaten, "beats")
        release.set()
        remote.until_empty()
    assert runs == [1]


def test_a_worker_never_holds_more_than_it_can_run(remote: Remote) -> None:
    started, release = [], threading.Event()

    def wait(n: int) -> None:
        started.append(n)
        release.wait(30)

    with remote.enqueuing() as queue:
        queue.enqueue_many("email", "wait", ({"n": n} for n in range(20)))
    with remote.worker([handler(wait)], settings=WorkerSettings(concurrency=3, ahead=0, poll_seconds=0.05)):
        wait_until(lambda: len(started) == 3, "three to start")
        assert remote.count("running") == 3
        release.set()
        remote.until_empty()
    assert sorted(started) == list(range(20))


def test_a_worker_that_stops_gives_back_what_it_has_not_begun(remote: Remote) -> None:
    started, release = threading.Event(), threading.Event()

    def wait(n: int) -> None:
        started.set()
        release.wait(30)

    with remote.enqueuing() as queue:
        queue.enqueue_many("email", "wait", ({"n": n} for n in range(10)))
    with remote.worker([handler(wait)], settings=WorkerSettings(concurrency=2, ahead=0, drain_seconds=30)) as worker:
        assert started.wait(30)
        worker.stop()
        release.set()
    assert remote.count("running") == 0
    assert remote.count("ready") + len(remote.queue.history()) == 10
    assert all(row["failures"] == 0 for row in remote.queue.rows("SELECT failures FROM holdfast_jobs"))


def test_what_no_handler_is_for_is_left_alone_and_visible(remote: Remote) -> None:
    ran: list[int] = []
    gone = remote.queue.add(operation="gone", priority=9)

    def known() -> None:
        ran.append(1)

    known_job = remote.queue.add(operation="known")
    assert remote.queue.store.stats()[0].without_worker == {"gone": 1, "known": 1}
    with remote.worker([handler(known)]):
        wait_until(lambda: ran, "the job behind it")
        remote.queue.add(operation="known")
        wait_until(lambda: len(ran) == 2, "another")
        said = "SELECT id FROM holdfast_workers WHERE operations LIKE '%known%'"
        wait_until(lambda: remote.queue.rows(said), "the server to announce its workers")
        assert remote.queue.store.stats()[0].without_worker == {"gone": 1}
    assert remote.queue.status(known_job.id) is None
    assert (remote.queue.status(gone.id), remote.queue.column(gone.id, "attempt")) == ("ready", 0)


def test_the_limits_of_a_topic_hold(remote: Remote) -> None:
    remote.queue.store.set_limits("email", limits_of(concurrency=1))
    running, most, lock = [0], [0], threading.Lock()

    def one_at_a_time() -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        with lock:
            running[0] -= 1

    with remote.enqueuing() as queue:
        queue.enqueue_many("email", "one_at_a_time", ({} for _ in range(8)))
    with remote.worker([handler(one_at_a_time)]):
        remote.until_empty()
    assert most == [1]


def test_a_result_that_is_too_large_is_not_kept(remote: Remote, caplog: pytest.LogCaptureFixture) -> None:
    def much() -> str:
        return "x" * (1024 * 1024)

    remote.queue.add(operation="much")
    with remote.worker([handler(much)]):
        remote.until_empty()
    [entry] = remote.queue.history()
    assert (entry["status"], entry["output"]) == ("Succeeded", None)
    assert "was not kept" in caplog.text


def test_a_wrong_token_ends_the_worker_at_once(remote: Remote) -> None:
    worker = RemoteWorker(remote.target(), [handler(lambda: None)], token="wrong", tls=remote.tls)
    with pytest.raises(ConfigurationError, match="carries a token that is not accepted here"):
        worker.run()


def test_a_worker_without_handlers_is_refused(remote: Remote) -> None:
    with pytest.raises(ConfigurationError, match="needs handlers"):
        RemoteWorker(remote.target(), [], token=remote.token, tls=remote.tls)


def test_a_remote_job_says_how_to_be_enqueued() -> None:
    with pytest.raises(ConfigurationError, match="Use RemoteQueue"):
        handler(lambda: None).enqueue()


def test_bad_arguments_are_refused_where_they_are_enqueued(remote: Remote) -> None:
    with remote.enqueuing() as queue:
        with pytest.raises(PayloadError, match="cannot be kept as JSON"):
            queue.enqueue("email", "send", {"what": object()})
        with pytest.raises(PayloadError, match="its payload has 1,048,"):
            queue.enqueue("email", "send", {"what": "x" * (1024 * 1024)})
        with pytest.raises(PayloadError, match="topic '' cannot be used: it is empty"):
            queue.enqueue("", "send")
    assert remote.count("ready") == 0
