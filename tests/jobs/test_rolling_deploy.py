"""A rolling deploy that adds a job: two real worker processes, of which only one has its handler."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.jobs.model import NewJob
from tests.components.processes import PythonWorker, wait_until
from tests.jobs.operations_app import TOPIC
from tests.jobs.queues import Queue

OLD, NEW = "old", "new"
FOREIGN = 3000


@contextmanager
def worker(queue: Queue, *operations: str) -> Iterator[PythonWorker]:
    url = queue.engine.url.render_as_string(hide_password=False)
    environment = {"WORKER_URL": url, "WORKER_OPERATIONS": ",".join(operations)}
    with PythonWorker("-m", "tests.jobs.operations_app", environment=environment) as started:
        started.wait_for_line("starting")
        yield started


def test_new_jobs_run_where_their_handler_is(queue: Queue) -> None:
    """The first worker never claims what it cannot run, and what nobody can run is in nobody's way."""
    foreign = NewJob(topic=TOPIC, operation="foreign", payload="", priority=9)
    queue.store.enqueue_batch(foreign, ("{}" for _ in range(FOREIGN)))
    with worker(queue, OLD) as first:
        queue.add(TOPIC, OLD)
        wait_until(lambda: len(queue.history()) == 1, "the worker to have begun")
        waiting = [queue.add(TOPIC, NEW).id for _ in range(20)]
        assert without_worker(queue) == {"foreign": FOREIGN, NEW: 20}
        with worker(queue, OLD, NEW) as second:
            wait_until(lambda: len(queue.history()) == 21, "the new jobs, where their handler is")
            for operation in (OLD, NEW) * 20:
                queue.add(TOPIC, operation)
            wait_until(lambda: len(queue.history()) == 61, "jobs of both")
            assert without_worker(queue) == {"foreign": FOREIGN}
    ran = queue.history()
    assert {row["attempt"] for row in ran} == {1}
    assert {row["output"] for row in ran if row["operation"] == NEW} == {str(second.pid)}
    assert ran[0]["output"] == str(first.pid)
    assert {row["item_id"] for row in ran} >= {f"job-{job_id}" for job_id in waiting}
    [left] = queue.rows("SELECT count(*) AS n, max(attempt) AS attempts FROM holdfast_jobs WHERE status = 'ready'")
    assert (left["n"], left["attempts"]) == (FOREIGN, 0)


def without_worker(queue: Queue) -> dict[str, int]:
    [stats] = queue.store.stats()
    return stats.without_worker
