"""A test that cannot go on is ended: the other jobs of its worker do not wait for it [SUSPECT-1]."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from holdfast.jobs import suspects
from holdfast.jobs.stores.base import SqlJobStore
from tests.components.processes import wait_until
from tests.jobs.queues import Queue, open_queue
from tests.jobs.workers import Work


@pytest.fixture
def queue(sqlite_url: str) -> Iterator[Queue]:
    """One database is enough: the statements are tested elsewhere."""
    with open_queue(sqlite_url) as opened:
        yield opened


@pytest.mark.parametrize("step", ["begin", "clear"])
def test_a_test_that_cannot_go_on_keeps_no_job_waiting(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, step: str
) -> None:
    def refuse(*arguments: object) -> bool:
        raise ValueError("planted: it cannot be written down")

    monkeypatch.setattr(suspects, "_SHORTEST_TEST_SECONDS", 0.05)
    monkeypatch.setattr(SqlJobStore, step, refuse)
    release = threading.Event()

    def linger() -> None:
        release.wait(60)

    def quick() -> None: ...

    work = Work(queue)
    suspect, other = work.job(linger).enqueue().id, work.job(quick)
    queue.claim_one()
    queue.step(31)
    queue.store.reap()
    assert queue.status(suspect) == "suspect"
    with work.running():
        wait_until(lambda: "Testing suspects failed" in caplog.text, "the trouble to be told")
        other.enqueue_many([{}] * 5)
        wait_until(lambda: len(queue.history()) == 5, "the other jobs to end")
        assert queue.status(suspect) == "running" or step == "begin"
        release.set()
        monkeypatch.undo()
        work.until_empty()
    assert queue.dead_letters() == []
