"""Whoever marks suspects wakes the workers that rest: it may be unable to run them itself."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from holdfast.jobs.settings import WorkerSettings
from tests.jobs.queues import ANNE, Queue, open_queue
from tests.jobs.workers import Work

NEVER_SECONDS = 3600.0  # longer than the test may take: only a wake-up can be in time
ROUNDS = 3  # whoever begins looks once, and once more when it begins to listen
RESTING = WorkerSettings(concurrency=1, watchdog_seconds=NEVER_SECONDS, poll_seconds=NEVER_SECONDS)


@pytest.fixture
def queue(postgres_url: str) -> Iterator[Queue]:
    """Elsewhere there are no wake-ups, and workers look as often as they poll."""
    with open_queue(postgres_url) as opened:
        yield opened


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_worker_that_rests_takes_a_suspect_that_another_has_marked(queue: Queue, has_begun: bool) -> None:
    work, handled = Work(queue, RESTING), threading.Semaphore(0)

    def handle() -> None:
        handled.release()

    job = work.job(handle, max_attempts=3)
    job.enqueue_many([{}] * ROUNDS)
    held = queue.claim(operations=(job.operation,))
    assert len(held) == ROUNDS
    for each in held if has_begun else []:  # under test, in a worker that dies: charged, they come again after a while
        assert queue.store.begin(ANNE, each.claim)
    with work.running():
        for lost in held:
            queue.expire(lost.id, lost.attempt)
            queue.store.reap()  # as the watchdog of a third one does
            assert handled.acquire(timeout=60)
        work.until_empty()
    assert queue.dead_letters() == []
