"""The server ends the transaction of a process that froze; a handler that is busy elsewhere keeps its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime, timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.engine import Engine

from holdfast.core.config import DbConfig
from holdfast.core.errors import Unavailable
from holdfast.database.pools import EngineProvider
from holdfast.runtime import idle_time
from holdfast.runtime import transaction as handler_transaction
from holdfast.runtime.transaction import HandlerTransaction
from tests.components.processes import wait_until
from tests.runtime.conftest import NewDatabase
from tests.runtime.stage import open_stage
from tests.runtime.ways import MARIADB
from tests.runtime.workloads import WORKLOADS

LEASE_SECONDS = {"postgresql": 0.3, "mysql": 1.0}
SESSION = {"postgresql": "SELECT pg_backend_pid()", "mysql": "SELECT connection_id()"}
SESSIONS = {
    "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE pid = :id",
    "mysql": "SELECT count(*) FROM information_schema.processlist WHERE id = :id",
}
NOW = {"postgresql": "SELECT clock_timestamp()", "mysql": "SELECT SYSDATE(6)"}
INSERT = text("INSERT INTO effects VALUES (:n)")


@pytest.fixture(params=["postgres_url", "mariadb_url"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    provider = EngineProvider()
    engine = provider.get_engine(DbConfig(connection_url=request.getfixturevalue(request.param)))
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE effects (n INTEGER NOT NULL)"))
    yield engine
    provider.dispose_all()


def lease_of(engine: Engine) -> float:
    return LEASE_SECONDS[engine.dialect.name]


def begun(engine: Engine, transaction: HandlerTransaction) -> int:
    """Write something, and return the id of its session."""
    transaction.connection.execute(INSERT, {"n": 1})
    return int(transaction.connection.execute(text(SESSION[engine.dialect.name])).scalar_one())


def is_there(engine: Engine, session: int) -> bool:
    with engine.connect() as connection:
        return bool(connection.execute(text(SESSIONS[engine.dialect.name]), {"id": session}).scalar_one())


def server_time(engine: Engine) -> datetime:
    with engine.connect() as connection:
        moment: datetime = connection.execute(text(NOW[engine.dialect.name])).scalar_one()
        return moment


def effects(engine: Engine) -> list[int]:
    with engine.connect() as connection:
        return [row[0] for row in connection.execute(text("SELECT n FROM effects ORDER BY n"))]


def record(connection: object) -> None:
    """Stand in for what a workload writes last."""


@pytest.mark.component("mariadb")
def test_a_handler_that_idles_for_many_leases_keeps_its_transaction(engine: Engine) -> None:
    transaction = HandlerTransaction(engine, lease_of(engine))
    begun(engine, transaction)
    over = server_time(engine) + timedelta(seconds=4 * lease_of(engine))
    wait_until(lambda: server_time(engine) > over, "four leases to pass")
    transaction.connection.execute(INSERT, {"n": 2})
    transaction.settle(record)
    assert effects(engine) == [1, 2]


@pytest.mark.component("mariadb")
def test_a_handler_and_the_pulse_use_the_drivers_connection_in_turns(engine: Engine) -> None:
    transaction, is_over = HandlerTransaction(engine, lease_of(engine)), threading.Event()
    begun(engine, transaction)
    driver = transaction.connection.connection.driver_connection
    assert driver is not None

    def keep_saying() -> None:
        while not is_over.is_set():
            transaction.say_something()

    pulsing = threading.Thread(target=keep_saying)
    pulsing.start()
    try:
        for n in range(500):
            cursor = driver.cursor()
            cursor.execute(f"SELECT {n}")
            assert cursor.fetchone() == (n,)
    finally:
        is_over.set()
        pulsing.join()
    transaction.settle(record)
    assert effects(engine) == [1]


@pytest.mark.component("mariadb")
@pytest.mark.parametrize("thread", ["holdfast-pulse", "holdfast-pulse-step"])
def test_a_thread_that_cannot_be_had_once_is_had_later(
    engine: Engine, thread: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused, really = list[str](), threading.Thread.start

    def start(self: threading.Thread) -> None:
        if self.name == thread and not refused:
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        really(self)

    monkeypatch.setattr(idle_time, "pulse", idle_time.Pulse())
    monkeypatch.setattr(handler_transaction, "pulse", idle_time.pulse)
    monkeypatch.setattr(threading.Thread, "start", start)
    other, transaction = HandlerTransaction(engine, lease_of(engine)), HandlerTransaction(engine, lease_of(engine))
    begun(engine, other)
    begun(engine, transaction)
    over = server_time(engine) + timedelta(seconds=4 * lease_of(engine))
    wait_until(lambda: server_time(engine) > over, "four leases to pass")
    for each in (other, transaction):
        each.settle(record)
    assert (refused, effects(engine)) == ([thread], [1, 1])


@pytest.mark.component("mariadb")
def test_without_the_pulse_the_server_ends_it(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a frozen process, which can say nothing."""
    monkeypatch.setattr(idle_time, "say_something", lambda connection: None)
    monkeypatch.setattr(HandlerTransaction, "say_something", lambda self: None)
    transaction = HandlerTransaction(engine, lease_of(engine))
    session = begun(engine, transaction)
    wait_until(lambda: not is_there(engine, session), "the server to end it")
    with pytest.raises(Unavailable, match="nothing was kept"):
        transaction.settle(record)
    transaction.close()
    assert effects(engine) == []


@pytest.mark.component("mariadb")
def test_a_handler_whose_lease_is_lost_does_not_keep_it(engine: Engine) -> None:
    transaction = HandlerTransaction(engine, lease_of(engine), is_held=lambda: False)
    session = begun(engine, transaction)
    wait_until(lambda: not is_there(engine, session), "the server to end it")
    transaction.close()
    assert effects(engine) == []


def test_the_transaction_that_was_begun_is_proved(sqlite_url: str) -> None:
    """[TRANSACTION-1] What stands in for it all is in ``test_what_transactions_promise``; here is the shortest form."""
    provider = EngineProvider()
    engine = provider.get_engine(DbConfig(connection_url=sqlite_url))
    transaction = HandlerTransaction(engine, 30.0)
    driver = transaction.connection.connection.driver_connection
    driver.rollback()
    driver.execute("BEGIN")
    assert transaction.was_ended()
    transaction.close()
    provider.dispose_all()


def test_what_was_proved_whole_stays_so_when_its_record_fails(sqlite_url: str) -> None:
    """A record that is refused is no end by the handler: its work may be repeated."""
    provider = EngineProvider()
    transaction = HandlerTransaction(provider.get_engine(DbConfig(connection_url=sqlite_url)), 30.0)
    transaction.connection.execute(text("CREATE TABLE effects (n INTEGER NOT NULL)"))

    def refuse(connection: object) -> None:
        raise ValueError("not ours any more")

    with pytest.raises(ValueError, match="not ours"):
        transaction.settle(refuse)
    assert not transaction.was_ended()
    transaction.close()
    provider.dispose_all()


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.component("mariadb")
def test_the_limit_leaves_the_session_with_the_transaction(workload: str, new_database: NewDatabase) -> None:
    """The application's own transactions on the same pool may idle as long as ever."""
    with new_database(MARIADB) as url, open_stage(workload, url) as stage:
        stage.workload.add(["one"])
        stage.workload.run(["one"], lambda item, context: stage.scene(item, context).write("before"))
        assert stage.kept() == {"one": [(1, "before")]}
        limits = text("SELECT @@SESSION.idle_transaction_timeout, @@GLOBAL.idle_transaction_timeout")
        engine = stage.workload.database
        with ExitStack() as held:
            sessions = [held.enter_context(engine.connect()) for _ in range(max(1, engine.pool.checkedin()))]  # type: ignore[attr-defined]
            for session in sessions:
                limit, usual = session.execute(limits).one()
                assert limit == usual
