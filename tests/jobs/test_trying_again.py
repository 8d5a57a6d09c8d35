"""What another transaction keeps out is added after all, in one of our own; the caller's is never repeated."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.engine import Connection, Engine, ExceptionContext

from holdfast.core.config import DbConfig
from holdfast.core.errors import Unavailable
from holdfast.database.errors import Kind, kind_of
from holdfast.database.pools import EngineProvider
from holdfast.engines.queues.embedded import EmbeddedQueue
from holdfast.jobs.definition import JobDefinition
from holdfast.jobs.model import NewJob
from holdfast.jobs.store import job_store
from holdfast.jobs.stores.base import SqlJobStore
from tests.components.named_pools import named_engine
from tests.components.processes import wait_until
from tests.jobs.queues import Queue, open_queue

IMPATIENT: dict[str, dict[str, object]] = {
    "postgresql": {"options": "-c lock_timeout=1ms -c deadlock_timeout=1ms"},
    "mysql": {"init_command": "SET SESSION innodb_lock_wait_timeout = 0"},
    "sqlite": {"timeout": 0},
}
DETECTS_DEADLOCKS: dict[str, dict[str, object]] = {"postgresql": {"options": "-c deadlock_timeout=1ms"}, "mysql": {}}
KEEPS_OUT = {
    "postgresql": "LOCK TABLE holdfast_jobs IN EXCLUSIVE MODE",
    "mysql": "SELECT id FROM holdfast_jobs FOR UPDATE",
    "sqlite": "UPDATE holdfast_jobs SET topic = topic",
}
SERVERS = ("postgres_url", "mariadb_url")
WAITING = {
    "postgresql": "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'",
    "mysql": "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'",
}
OWN_SESSION = {"postgresql": "SELECT pg_backend_pid()", "mysql": "SELECT CONNECTION_ID()"}
ENDED = {"postgresql": "SELECT pg_terminate_backend({id}, 10000)", "mysql": "KILL {id}"}


def plain(key: str | None = None) -> NewJob:
    return NewJob(topic="email", operation="send", payload="{}", unique_key=key)


def greet(name: str) -> None:
    """Do nothing: a handler for jobs that nobody runs."""


@dataclass
class Tries:
    """A store whose database does not wait for locks, and how often it was gone to."""

    store: SqlJobStore
    errors: list[Kind] = field(default_factory=list)
    count: int = 0

    def __post_init__(self) -> None:
        event.listen(self.store.engine, "checkout", self._count)
        event.listen(self.store.engine, "handle_error", self._note)

    def _count(self, *_: object) -> None:
        self.count += 1

    def _note(self, context: ExceptionContext) -> None:
        self.errors.append(kind_of(context.sqlalchemy_exception or context.original_exception))

    def after_each(self, act: Callable[[], object]) -> None:
        """Do something each time the store has given its connection back."""
        event.listen(self.store.engine, "checkin", lambda *_: act())


def engine_of(queue: Queue, settings: dict[str, dict[str, object]]) -> Engine:
    url = queue.engine.url.render_as_string(hide_password=False)
    arguments = settings[queue.store.dialect]
    return EngineProvider().create_isolated_engine(DbConfig(connection_url=url, connect_args=arguments))


@pytest.fixture
def tries(queue: Queue) -> Iterator[Tries]:
    engine = engine_of(queue, IMPATIENT)
    store = job_store(engine)
    store.stats()  # connected, and all that is done once is done
    yield Tries(store)
    engine.dispose()


@pytest.fixture
def other(queue: Queue) -> Iterator[Connection]:
    """Another transaction, that keeps every new job out until it ends."""
    with queue.engine.connect() as connection:
        connection.execute(text(KEEPS_OUT[queue.store.dialect]))
        yield connection


def job_of(store: SqlJobStore) -> JobDefinition:
    return JobDefinition(greet, topic="email", store=lambda: store)


WAYS: dict[str, Callable[[SqlJobStore], Any]] = {
    "one job": lambda store: store.enqueue(plain()),
    "one with a unique key": lambda store: store.enqueue(plain("k")),
    "many": lambda store: store.enqueue_many([plain(), plain("k")]),
    "many alike": lambda store: job_of(store).enqueue_many([{"name": "Anne"}, {"name": "Bert"}]),
    "an engine's message": lambda store: EmbeddedQueue(store, "orders").add("{}", message_id="m"),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_a_lock_kept_out_is_tried_again(queue: Queue, tries: Tries, other: Connection, way: str) -> None:
    tries.after_each(other.rollback)
    WAYS[way](tries.store)
    assert tries.count == 2
    assert len(queue.rows("SELECT id FROM holdfast_jobs")) == (2 if "many" in way else 1)


@pytest.mark.parametrize("way", WAYS)
def test_it_is_given_up_after_a_few_tries(queue: Queue, tries: Tries, other: Connection, way: str) -> None:
    with pytest.raises(Unavailable, match=r"was busy: .*\. Nothing was changed; try again\.$"):
        WAYS[way](tries.store)
    assert tries.count == 20
    other.rollback()
    assert queue.rows("SELECT id FROM holdfast_jobs") == []


def test_the_callers_transaction_is_never_repeated(queue: Queue, tries: Tries, other: Connection) -> None:
    with pytest.raises(Unavailable, match="was busy"), tries.store.engine.begin() as own:
        tries.store.enqueue(plain("k"), own)
    assert tries.errors == [Kind.CONTENTION]
    assert tries.count == 1


def test_arguments_that_can_be_drawn_once_are_not_repeated(queue: Queue, tries: Tries, other: Connection) -> None:
    with pytest.raises(Unavailable, match="was busy"):
        job_of(tries.store).enqueue_many({"name": name} for name in ("Anne", "Bert"))
    assert tries.count == 1


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("database", SERVERS)
def test_a_session_that_ended_while_it_was_idle_is_replaced_before_anything_is_sent(
    database: str, way: str, request: pytest.FixtureRequest
) -> None:
    with open_queue(request.getfixturevalue(database)) as queue:
        url = queue.engine.url.render_as_string(hide_password=False)
        engine = named_engine(url, connect_args=IMPATIENT[queue.store.dialect])
        tries = Tries(job_store(engine))
        _end_session_of(queue, engine)
        WAYS[way](tries.store)
        assert tries.errors == []
        assert len(queue.rows("SELECT id FROM holdfast_jobs")) == (2 if "many" in way else 1)
        engine.dispose()


@pytest.mark.parametrize("database", SERVERS)
def test_a_session_that_ends_before_the_commit_is_sent_is_tried_again(
    database: str, request: pytest.FixtureRequest
) -> None:
    with open_queue(request.getfixturevalue(database)) as queue:
        engine = engine_of(queue, IMPATIENT)
        tries = Tries(job_store(engine))
        _end_session_of(queue, engine)
        assert tries.store.enqueue(plain("k")).is_new
        assert tries.errors == [Kind.BROKEN]
        assert len(queue.rows("SELECT id FROM holdfast_jobs")) == 1
        engine.dispose()


def _end_session_of(queue: Queue, engine: Engine) -> None:
    """End the one session that the pool of ``engine`` has."""
    with engine.connect() as connection:
        own = connection.execute(text(OWN_SESSION[queue.store.dialect])).scalar_one()
    with queue.engine.connect() as administrator:
        administrator.execute(text(ENDED[queue.store.dialect].format(id=own)))
        if queue.store.dialect == "mysql":  # there it is told only, and not waited for
            alive = text(f"SELECT count(*) FROM information_schema.processlist WHERE id = {own}")
            wait_until(lambda: administrator.execute(alive).scalar_one() == 0, "the session to end")


@pytest.mark.parametrize("database", SERVERS)
def test_the_victim_of_a_deadlock_is_tried_again(database: str, request: pytest.FixtureRequest) -> None:
    with open_queue(request.getfixturevalue(database)) as queue:
        engine = engine_of(queue, DETECTS_DEADLOCKS)
        tries = Tries(job_store(engine))
        with _crossing(queue, engine):
            assert tries.store.enqueue_many([plain("ours"), plain("theirs")]) == 2
        assert tries.errors[0] is Kind.CONTENTION
        held = [row["unique_key"] for row in queue.rows("SELECT unique_key FROM holdfast_jobs ORDER BY unique_key")]
        assert held == ["ours", "theirs"]
        engine.dispose()


class _crossing:  # noqa: N801 - reads as what it does in a with statement
    """Another transaction that has the second key and, once we have the first, wants that too; it is undone at last."""

    def __init__(self, queue: Queue, engine: Engine) -> None:
        self._queue = queue
        self._thread = threading.Thread(target=self._want_ours)
        self._connection = queue.engine.connect()
        event.listen(engine, "before_cursor_execute", self._before)

    def __enter__(self) -> None:
        if self._queue.store.dialect == "mysql":  # the lighter transaction is the victim
            self._queue.store.enqueue_many([plain() for _ in range(200)], self._connection)
        self._queue.store.enqueue(plain("theirs"), self._connection)

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        self._connection.close()

    def _before(self, _: object, __: object, statement: str, parameters: Any, *rest: object) -> None:
        """Before we ask for their key for the first time, let them wait for ours."""
        if self._thread.ident is None and "theirs" in str(parameters):
            self._thread.start()
            wait_until(self._is_waiting, "the other transaction to wait")

    def _want_ours(self) -> None:
        self._queue.store.enqueue(plain("ours"), self._connection)
        self._connection.rollback()

    def _is_waiting(self) -> bool:
        return bool(self._queue.rows(f"{WAITING[self._queue.store.dialect]}")[0].popitem()[1])
