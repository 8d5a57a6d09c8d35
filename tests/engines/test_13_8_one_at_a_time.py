"""Of messages with one correlation id one is executed at a time, whichever workers have them [ENGINE-7]."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from sqlalchemy import text

from holdfast import Holdfast
from holdfast.engines.twins import Twins
from holdfast.jobs.settings import WorkerSettings
from tests.components.processes import PythonWorker, wait_until
from tests.engines.test_on_the_jobs_worker import DATABASES, Crowd, rows, until_empty

QUICK = WorkerSettings(watchdog_seconds=0.2, poll_seconds=0.1)
HANGS = """
import sys, threading
from holdfast import Holdfast
from holdfast.jobs.settings import WorkerSettings
hf = Holdfast(sys.argv[1])
@hf.engine("hmac", visibility_seconds=1, concurrency=1, conflict_seconds=0.1)
def rotate(context, message):
    threading.Event().wait()
hf.jobs.worker(threading.Event(), WorkerSettings(), others=hf.engines.handlers()).run()
"""


class Fleet:
    """An application whose engine holds its executions inside, and as many workers of it as a test wants."""

    def __init__(self, url: str) -> None:
        self.hf = Holdfast(url)
        self.crowd = Crowd()
        self.executed: list[str] = []
        options: dict[str, Any] = {"visibility_seconds": 1, "concurrency": 1, "conflict_seconds": 0.1}
        self.engine = self.hf.engine("hmac", operation="rotate", **options)(self._handle)
        self.other = self.hf.engine("hmac", operation="notify", **options)(self._handle)
        self.hf.migrate()

    def _handle(self, context: Any, message: Any) -> None:
        self.executed.append(message.message_id)
        self.crowd()

    @contextmanager
    def worker(self) -> Iterator[None]:
        """Run one more worker, which has nothing in common with the others but the database."""
        stop = threading.Event()
        worker = self.hf.jobs.worker(stop, QUICK, others=self.hf.engines.handlers())
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            yield
        finally:
            self.crowd.goes_on.set()
            stop.set()
            thread.join(60)

    def stepped_back(self) -> int:
        """Return how many messages were put back because another worker has their twin."""
        with self.hf.database.connect() as connection:
            query = "SELECT count(*) FROM holdfast_jobs WHERE last_error LIKE 'Another worker%' AND failures = 0"
            return int(connection.execute(text(query)).scalar_one())

    def running(self) -> int:
        with self.hf.database.connect() as connection:
            query = "SELECT count(*) FROM holdfast_jobs WHERE status = 'running'"
            return int(connection.execute(text(query)).scalar_one())


@pytest.fixture(params=DATABASES)
def fleet(request: pytest.FixtureRequest) -> Iterator[Fleet]:
    made = Fleet(request.getfixturevalue(request.param))
    yield made
    made.hf._provider.dispose_all()


def test_13_8_twins_in_several_workers_are_executed_once_and_wait_uncharged(fleet: Fleet) -> None:
    with ExitStack() as workers:
        workers.enter_context(fleet.worker())
        fleet.engine.send(message_id="m-0", correlation_id="c-1")
        wait_until(lambda: fleet.crowd.inside == 1, "the first to be executed")
        for number in range(1, 4):
            fleet.engine.send(message_id=f"m-{number}", correlation_id="c-1")
        workers.enter_context(fleet.worker())
        workers.enter_context(fleet.worker())
        wait_until(lambda: fleet.stepped_back() > 0 or fleet.crowd.inside > 1, "another to wait", 60)
        assert fleet.crowd.inside == 1
        fleet.crowd.goes_on.set()
        until_empty(fleet.hf)
    assert fleet.executed == ["m-0"]
    assert (rows(fleet.hf, "holdfast_history"), rows(fleet.hf, "holdfast_dead_letters")) == (1, 0)


def test_13_8_twins_that_wait_for_several_workers_are_executed_once(fleet: Fleet) -> None:
    fleet.crowd.goes_on.set()
    for number in range(30):
        fleet.engine.send(correlation_id=f"c-{number % 3}")
    with fleet.worker(), fleet.worker(), fleet.worker():
        until_empty(fleet.hf)
    assert (len(fleet.executed), rows(fleet.hf, "holdfast_history")) == (3, 3)


def test_13_8_another_operation_for_the_same_business_does_not_wait(fleet: Fleet) -> None:
    fleet.engine.send(correlation_id="c-1")
    fleet.other.send(correlation_id="c-1")
    with fleet.worker(), fleet.worker():
        wait_until(lambda: fleet.crowd.inside == 2, "both operations to be executed", 60)
        assert fleet.stepped_back() == 0


def test_13_8_when_the_first_worker_is_killed_the_second_goes_on(fleet: Fleet) -> None:
    fleet.engine.send(message_id="m-0", correlation_id="c-1")
    with PythonWorker("-c", HANGS, fleet.hf.database.url.render_as_string(hide_password=False)) as first:
        wait_until(lambda: fleet.running() == 1, "the first to be at work", 60)
        fleet.engine.send(message_id="m-1", correlation_id="c-1")
        with fleet.worker():
            wait_until(lambda: fleet.stepped_back() == 1 or fleet.executed, "the second to wait", 60)
            assert fleet.executed == []
            first.kill()
            wait_until(lambda: fleet.crowd.inside == 1, "one of them to be executed", 60)
            fleet.crowd.goes_on.set()
            until_empty(fleet.hf)
    assert len(fleet.executed) == 1
    assert (rows(fleet.hf, "holdfast_history"), rows(fleet.hf, "holdfast_dead_letters")) == (1, 0)


def test_13_8_planted_without_the_look_at_other_workers_both_are_executed(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted bug: what the tests above would say of it."""
    monkeypatch.setattr(Twins, "_elsewhere", lambda *given: {})
    fleet = Fleet(sqlite_url)
    for _ in range(2):
        fleet.engine.send(correlation_id="c-1")
    with fleet.worker(), fleet.worker():
        wait_until(lambda: fleet.crowd.inside == 2, "both to be executed", 60)
    fleet.hf._provider.dispose_all()
