"""A fleet is upgraded one process at a time: workers of the version before go on while the tables change."""

from __future__ import annotations

import pytest
from sqlalchemy import text
from sqlalchemy.engine import Connection

from holdfast import Holdfast
from holdfast.core.engine import EngineProvider
from holdfast.core.errors import ConfigurationError
from holdfast.core.migrations import Migration, migrate
from holdfast.jobs.worker import WorkerSettings
from tests.components.processes import wait_until
from tests.jobs.queues import Queue
from tests.jobs.workers import Work

TABLES = ("holdfast_jobs", "holdfast_history", "holdfast_dead_letters", "holdfast_topics")


def _add_columns(connection: Connection) -> None:
    """What a next version would do: new columns with a default, a new index."""
    for table in TABLES:
        connection.execute(text(f"ALTER TABLE {table} ADD COLUMN added_later varchar(20) DEFAULT 'later'"))
    connection.execute(text("CREATE INDEX holdfast_jobs_added_later ON holdfast_jobs (added_later)"))


NEXT = Migration(9001, "next version", _add_columns)


def test_workers_of_the_version_before_go_on_while_the_tables_change(queue: Queue) -> None:
    work = Work(queue, WorkerSettings(concurrency=2, poll_seconds=0.05))
    ran: list[int] = []

    def note(n: int) -> None:
        ran.append(n)
        if n % 10 == 9:
            raise ValueError("nine")

    job = work.job(note, max_attempts=1)
    with work.running():
        job.enqueue_many([{"n": n} for n in range(50)])
        wait_until(lambda: len(ran) >= 10, "some jobs before the migration")
        assert migrate(queue.engine, [NEXT]) == ["9001 next version"]
        job.enqueue_many([{"n": n} for n in range(50, 100)])
        job.enqueue(n=100)
        wait_until(lambda: len(ran) == 101, "the jobs before and after the migration")
        wait_until(lambda: len(queue.dead_letters()) == 10, "the failed ones to be told")
    assert sorted(ran) == list(range(101))
    assert {row["added_later"] for row in queue.history()} == {"later"}


def test_a_process_that_is_too_old_does_not_start(queue: Queue) -> None:
    app = Holdfast(queue.engine.url.render_as_string(hide_password=False), engine_provider=EngineProvider())
    app.job()(lambda: None)
    app.migrate()
    migrate(queue.engine, [NEXT])
    with pytest.raises(ConfigurationError, match=r"newer Holdfast \(9001 next version\)\. Upgrade this one"):
        app.run()
    app._provider.dispose_all()
