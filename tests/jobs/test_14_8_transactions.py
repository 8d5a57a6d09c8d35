"""What the database undid, in a failover or by a conflict, comes again uncharged: the handler is not to blame."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError

from holdfast.core.config import DbConfig
from holdfast.database.pools import EngineProvider
from holdfast.jobs.context import JobContext
from holdfast.jobs.model import MOST_UNDONE
from tests.components.processes import wait_until
from tests.jobs.conftest import DATABASES
from tests.jobs.failover import ordinary_user, read_only
from tests.jobs.queues import Queue, open_queue
from tests.jobs.workers import QUICK, Work

INSERT = text("INSERT INTO effects (n) VALUES (1)")
LETTERS = "SELECT error_message FROM holdfast_dead_letters"


class Failover:
    """A queue whose database refuses writes, or a commit, for as long as a test wants it to."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.calls: list[int] = []
        self.begun, self.go_on = threading.Event(), threading.Event()
        self._provider = EngineProvider()
        with self.queue() as queue, queue.engine.begin() as connection:
            connection.execute(text("CREATE TABLE effects (n integer NOT NULL)"))

    @property
    def is_sqlite(self) -> bool:
        return make_url(self.url).get_backend_name() == "sqlite"

    @contextmanager
    def queue(self) -> Iterator[Queue]:
        with open_queue(self.url) as queue:
            yield queue

    @contextmanager
    def working(
        self, handler: Callable[[JobContext], None], *, undone_before: int = 0, **settings: Any
    ) -> Iterator[Work]:
        engine = self._provider.create_isolated_engine(DbConfig(connection_url=self.url))
        with self.queue() as queue:
            work = Work(queue, QUICK, engine)
            work.job(handler, **settings).enqueue()
            with queue.engine.begin() as connection:
                connection.execute(text("UPDATE holdfast_jobs SET undone = :n"), {"n": undone_before})
            with work.running():
                yield work
        engine.dispose()

    def first(self, context: JobContext) -> bool:
        """Note a call; return whether it is the first, and then wait for what the test does meanwhile."""
        self.calls.append(context.attempt)
        if len(self.calls) > 1:
            return False
        self.begun.set()
        assert self.go_on.wait(30)
        return True

    def ended(self) -> list[tuple[int, str]]:
        """Return what the history has, once the queue is empty but for dead ones."""
        with self.queue() as queue:
            left = "SELECT count(*) AS n FROM holdfast_jobs WHERE status <> 'dead'"
            wait_until(lambda: queue.rows(left)[0]["n"] == 0, "the job to end")
            return [(entry["attempt"], entry["status"]) for entry in queue.history()]

    def rows(self, sql: str) -> list[dict[str, Any]]:
        with self.queue() as queue:
            return queue.rows(sql)


@pytest.fixture(params=DATABASES)
def failover(request: pytest.FixtureRequest) -> Iterator[Failover]:
    with ordinary_user(request.getfixturevalue(request.param)) as url:
        yield Failover(url)


def refused(handler: Callable[[JobContext], None], failover: Failover, **settings: Any) -> list[tuple[int, str]]:
    """Run a job; the database takes no writes from when its handler goes on until something was refused for that."""
    raised = threading.Event()

    def watched(context: JobContext) -> None:
        try:
            handler(context)
        finally:
            raised.set()

    with failover.working(watched, **settings):
        assert failover.begun.wait(30)
        with read_only(failover.url):
            failover.go_on.set()
            assert raised.wait(30)
        return failover.ended()


@pytest.mark.parametrize("begins_before", [True, False])
def test_14_8_what_a_failover_undid_is_not_charged(failover: Failover, begins_before: bool) -> None:
    """The transaction was open when it began, or its first statement was refused."""
    if begins_before and failover.is_sqlite:
        pytest.skip("a transaction that is open on SQLite has the file, which nobody can make read-only then")

    def write(context: JobContext) -> None:
        if begins_before:
            context.transaction.execute(INSERT)
        failover.first(context)
        if not begins_before:
            context.transaction.execute(INSERT)

    history = refused(write, failover, max_attempts=2)
    assert len(failover.calls) == 2
    assert (history, failover.rows("SELECT n FROM effects")) == ([(failover.calls[-1], "Succeeded")], [{"n": 1}])


@pytest.mark.parametrize("transactional", [True, False])
def test_14_8_what_may_run_once_begins_again_only_if_it_has_no_other_effects(
    failover: Failover, transactional: bool
) -> None:
    def write(context: JobContext) -> None:
        failover.first(context)
        context.transaction.execute(INSERT)

    history = refused(write, failover, max_attempts=1, transactional=transactional)
    if transactional:
        assert (len(failover.calls), history[-1][1], failover.rows(LETTERS)) == (2, "Succeeded", [])
    else:
        assert (len(failover.calls), history) == (1, [(1, "Failed")])
        [letter] = failover.rows(LETTERS)
        assert "declare a job that does nothing elsewhere with transactional=True" in letter["error_message"]
    assert len(failover.rows("SELECT n FROM effects")) == transactional


def _refusing_commits(failover: Failover) -> None:
    """Let COMMIT meet a conflict, as a certification of Galera's does, for as long as the gate has a row."""
    statements = [
        "CREATE TABLE gate (n integer NOT NULL)",
        "INSERT INTO gate VALUES (1)",
        """CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF EXISTS (SELECT FROM gate) THEN RAISE 'conflict' USING ERRCODE = '40001'; END IF; RETURN NEW; END $$""",
        """CREATE CONSTRAINT TRIGGER refusing AFTER INSERT ON effects DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION refuse()""",
    ]
    with failover.queue() as queue, queue.engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


def write(context: JobContext) -> None:
    context.transaction.execute(INSERT)


@pytest.mark.component("postgres18")
def test_14_8_a_conflict_at_commit_is_not_charged(postgres_url: str) -> None:
    failover = Failover(postgres_url)
    _refusing_commits(failover)
    with failover.working(write, max_attempts=2):
        undone = "SELECT undone, failures, last_error FROM holdfast_jobs WHERE undone > 1"
        [row] = wait_until(lambda: failover.rows(undone), "it to be undone twice")
        assert (row["failures"], "everything was undone" in row["last_error"]) == (0, True)
        with failover.queue() as queue, queue.engine.begin() as connection:
            connection.execute(text("DELETE FROM gate"))
        [(_, status)] = failover.ended()
    assert (status, len(failover.rows("SELECT n FROM effects"))) == ("Succeeded", 1)


@pytest.mark.component("postgres18")
def test_14_8_what_is_undone_again_and_again_counts_in_the_end(postgres_url: str) -> None:
    failover = Failover(postgres_url)
    _refusing_commits(failover)
    with failover.working(write, undone_before=MOST_UNDONE - 1, max_attempts=2):
        counted = "SELECT failures FROM holdfast_jobs WHERE failures > 0"
        assert wait_until(lambda: failover.rows(counted), "it to count") == [{"failures": 1}]
        with failover.queue() as queue, queue.engine.begin() as connection:
            connection.execute(text("DELETE FROM gate"))
        assert [status for _, status in failover.ended()] == ["Failed", "Succeeded"]


@pytest.mark.parametrize(
    "elsewhere", [True, pytest.param(False, marks=pytest.mark.component("postgres18"))], ids=["elsewhere", "too slow"]
)
def test_14_8_what_is_the_handlers_own_doing_is_charged(elsewhere: bool, request: pytest.FixtureRequest) -> None:
    """Another database that takes no writes, or a statement for which it has set a limit of time."""
    failover = Failover(request.getfixturevalue("sqlite_url" if elsewhere else "postgres_url"))
    other = create_engine("sqlite://")

    def fail(context: JobContext) -> None:
        context.transaction.execute(INSERT)
        if elsewhere:
            with other.connect() as connection:
                connection.exec_driver_sql("PRAGMA query_only = ON")
                with pytest.raises(DBAPIError, match="readonly"):
                    connection.exec_driver_sql("CREATE TABLE t (n integer)")
                connection.exec_driver_sql("CREATE TABLE t (n integer)")
        context.transaction.execute(text("SET LOCAL statement_timeout = 10"))
        context.transaction.execute(text("SELECT pg_sleep(30)"))

    with failover.working(fail, max_attempts=2):
        assert failover.ended() == [(1, "Failed"), (2, "Failed")]
