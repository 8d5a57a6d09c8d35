"""The queue as a remote worker sees it: what has arrived is held, whether the worker took it yet or not."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from holdfast.core.clock import SystemClock
from holdfast.core.errors import ConfigurationError
from holdfast.jobs.grpc.connection import RemoteConnection
from holdfast.jobs.grpc.receiving import Receiving
from holdfast.jobs.grpc.remote_store import RemoteJobStore
from holdfast.jobs.model import Attempt, Claim, Failure, PutBack, Success, WorkerId
from tests.components.processes import wait_until
from tests.jobs.queues import Queue, open_queue
from tests.jobs.remote import Remote

WORKER = WorkerId("w")
WANTED = {"email": ["send", "much"]}


class Held:
    """A remote store whose stream is open."""

    def __init__(self, connection: RemoteConnection) -> None:
        self.store = RemoteJobStore(connection, WORKER, threading.Event())
        self.receiving: Receiving = self.store.wake_ups(
            WANTED, SystemClock(), on_jobs=lambda: None, on_cancel=lambda: None
        )
        self.receiving.start()

    def arrived(self) -> list[Claim]:
        return wait_until(self.receiving.waiting, "a job to arrive")


@pytest.fixture
def queue(sqlite_url: str) -> Iterator[Queue]:
    with open_queue(sqlite_url) as opened:
        yield opened


@pytest.fixture
def connection(queue: Queue) -> Iterator[RemoteConnection]:
    with Remote(queue).serving() as remote, remote.connection() as opened:
        yield opened


@pytest.fixture
def held(connection: RemoteConnection) -> Iterator[Held]:
    opened = Held(connection)
    yield opened
    opened.receiving.stop()


def ask(held: Held, capacity: int) -> None:
    """Grant credit on the stream that is open; nothing has arrived yet."""
    assert held.store.claim(WORKER, WANTED, capacity) == []


def test_what_waits_to_be_taken_is_beaten_for(held: Held, queue: Queue) -> None:
    job = queue.add()
    ask(held, 1)
    [claim] = held.arrived()
    assert claim == Claim(job.id, Attempt(1))
    assert held.store.heartbeat(WORKER, []) == {claim: None}

    def is_reaped() -> bool:
        queue.step(60)  # each time: a beat on its way may have come first
        return queue.status(job.id) != "running"

    wait_until(is_reaped, "the watchdog")
    assert held.store.heartbeat(WORKER, []) == {}
    assert held.store.claim(WORKER, WANTED, 0) == []


def test_credit_is_granted_for_free_places_only(held: Held, queue: Queue) -> None:
    for _ in range(6):
        queue.add()
    ask(held, 2)
    wait_until(lambda: len(held.receiving.waiting()) == 2, "two jobs")
    taken = held.store.claim(WORKER, WANTED, 2)
    assert len(taken) == 2
    held.store.heartbeat(WORKER, [])
    assert held.receiving.waiting() == []
    held.store.claim(WORKER, WANTED, 1)
    held.arrived()
    assert len(queue.rows("SELECT id FROM holdfast_jobs WHERE status = 'running'")) == 3


def test_what_was_not_taken_is_put_back_at_the_end(held: Held, queue: Queue) -> None:
    job = queue.add()
    ask(held, 1)
    held.arrived()
    held.receiving.stop()
    assert (queue.status(job.id), queue.column(job.id, "failures")) == ("ready", 0)


def test_what_a_server_of_a_release_before_sends_and_nobody_knows_is_put_back(held: Held, queue: Queue) -> None:
    known, unknown = queue.add(), queue.add(operation="much")
    ask(held, 2)
    wait_until(lambda: len(held.receiving.waiting()) == 2, "both")
    assert [job.id for job in held.store.claim(WORKER, {"email": ["send"]}, 0)] == [known.id]
    assert (queue.status(unknown.id), queue.column(unknown.id, "failures")) == ("scheduled", 0)
    assert "has no handler for it" in queue.column(unknown.id, "last_error")


def test_many_reports_are_sent_in_messages_that_fit(held: Held, queue: Queue) -> None:
    for _ in range(6):
        queue.add(operation="much", max_attempts=1)
    ask(held, 6)
    wait_until(lambda: len(held.receiving.waiting()) == 6, "six jobs")
    jobs = held.store.claim(WORKER, WANTED, 0)
    output = '"' + "x" * 700_000 + '"'
    assert held.store.complete(WORKER, [Success(job.claim, 1, output) for job in jobs[:4]]) == {
        job.claim for job in jobs[:4]
    }
    failed = held.store.fail(WORKER, [Failure(jobs[4].claim, 1, "x" * 100_000)])
    assert list(failed.values()) == ["dead"]
    assert held.store.put_back(WORKER, [PutBack(jobs[5].claim)]) == {jobs[5].claim: None}
    assert len(queue.dead_letters()[0]["error_message"]) == 20_000


def test_there_is_nothing_to_complete_in(held: Held) -> None:
    with pytest.raises(ConfigurationError, match="no access to the queue's database"):
        held.store.complete_on(None, WORKER, Success(Claim(1, 1), 1))  # type: ignore[arg-type] # nothing is looked at
