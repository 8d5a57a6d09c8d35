"""A fleet is upgraded one process at a time: workers of the version before go on while the tables change."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import text
from sqlalchemy.engine import Connection

from holdfast import Holdfast
from holdfast.core.config import DbConfig
from holdfast.core.errors import ConfigurationError
from holdfast.database.migrations import Migration, migrate
from holdfast.database.pools import EngineProvider
from holdfast.jobs.model import JobId
from holdfast.jobs.schema import MIGRATIONS as JOB_MIGRATIONS
from holdfast.jobs.settings import WorkerSettings
from holdfast.records.schema import MIGRATIONS as RECORD_MIGRATIONS
from tests.components.processes import wait_until
from tests.jobs.conftest import DATABASES
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


_OLD_INSERT = (
    "INSERT INTO holdfast_jobs (topic, operation, payload, status, priority) VALUES ('email', 'send', '{}', :status, 0)"
)
_OLD_CLAIM = """
SELECT job.id FROM holdfast_jobs AS job {hint}
WHERE job.topic = 'email' AND job.status = 'ready' AND job.limit_key IS NULL
ORDER BY job.priority DESC, job.id LIMIT 10 {lock}"""


def test_jobs_of_the_release_before_are_claimed_in_its_order_then_in_that_of_readiness(queue_before: Queue) -> None:
    """It knows no order of readiness, neither in what it added before the migration nor in what it adds behind it."""
    queue = queue_before
    before = [_added_by_the_release_before(queue, status) for status in ("ready", "ready", "dead")]
    migrate(queue.engine, JOB_MIGRATIONS)
    meanwhile = queue.add().id
    later = _added_by_the_release_before(queue)
    last = queue.add().id
    queue.step(1)  # SQLite counts milliseconds, and all of this may happen in one
    queue.store.retry(before[2:], "eve")
    assert _claimed_by_the_release_before(queue) == sorted([*before, meanwhile, later, last])
    assert [job.id for job in queue.claim(operations=("send", "print"))] == [
        *before[:2],
        meanwhile,
        later,
        last,
        before[2],
    ]


def test_a_migration_that_was_broken_off_goes_on(queue_before: Queue) -> None:
    queue = queue_before
    added = _added_by_the_release_before(queue)
    migrate(queue.engine, JOB_MIGRATIONS)
    with queue.engine.begin() as connection:  # as if the process had died before it could note what it had done
        connection.execute(text("DELETE FROM holdfast_migrations WHERE number = 7"))
    assert migrate(queue.engine, JOB_MIGRATIONS) == ["0007 jobs: order of readiness"]
    assert [job.id for job in queue.claim()] == [added]


@pytest.fixture(params=[f"empty_{database}" for database in DATABASES])
def queue_before(request: pytest.FixtureRequest) -> Iterator[Queue]:
    """Yield a queue as the release before the order of readiness made it."""
    provider = EngineProvider()
    engine = provider.get_engine(DbConfig(connection_url=request.getfixturevalue(request.param)))
    migrate(engine, (*RECORD_MIGRATIONS, *(step for step in JOB_MIGRATIONS if step.number < 7)))
    yield Queue(engine)
    provider.dispose_all()


def _added_by_the_release_before(queue: Queue, status: str = "ready") -> JobId:
    with queue.engine.begin() as connection:
        connection.execute(text(_OLD_INSERT), {"status": status})
    return JobId(queue.rows("SELECT max(id) AS id FROM holdfast_jobs")[0]["id"])


def _claimed_by_the_release_before(queue: Queue) -> list[JobId]:
    """Return what its claims find, in its order; its statements insist on an index by its name."""
    dialect = queue.engine.dialect.name
    hint = "FORCE INDEX (holdfast_jobs_by_key)" if dialect in ("mysql", "mariadb") else ""
    lock = "" if dialect == "sqlite" else "FOR UPDATE SKIP LOCKED"
    return [row["id"] for row in queue.rows(_OLD_CLAIM.format(hint=hint, lock=lock))]


def test_15_a_process_starts_on_the_tables_of_a_later_release_until_one_says_that_it_cannot_work(queue: Queue) -> None:
    """Whoever is upgraded one process at a time, and restarts an old one meanwhile, must not lose it."""
    app = Holdfast(queue.engine.url.render_as_string(hide_password=False), engine_provider=EngineProvider())
    app.job()(lambda: None)
    app.migrate()
    migrate(queue.engine, [NEXT])
    assert app.run(on_started=app.stop)
    migrate(queue.engine, [Migration(9002, "the columns are used", lambda connection: None, needs=9001)])
    with pytest.raises(ConfigurationError, match=r"newer Holdfast, and since 9002 the columns are used .* Upgrade it"):
        app.run(on_started=app.stop)
    app._provider.dispose_all()


@pytest.mark.parametrize("database", ["postgres", "mariadb"])
def test_a_pooled_connection_that_died_is_no_failure(database: str, request: pytest.FixtureRequest) -> None:
    url, server = (request.getfixturevalue(f"{database}_{what}") for what in ("url", "server"))
    provider = EngineProvider()
    engine = provider.get_engine(DbConfig(connection_url=url))
    assert migrate(engine, RECORD_MIGRATIONS) == []
    assert server.terminate_sessions(engine.url.database) >= 1
    assert migrate(engine, RECORD_MIGRATIONS) == []
    provider.dispose_all()
