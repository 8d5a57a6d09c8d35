"""A server that hangs is given up by the clock on statements of ours, on no others, and never while it answers."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
from sqlalchemy import text
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError, OperationalError

from holdfast import DbConfig, EngineProvider
from holdfast.core.errors import Ambiguous
from holdfast.core.patience import unhurried, until_lost
from holdfast.database import deadlines
from holdfast.database.deadlines import answering, limited
from holdfast.database.pools import autocommit, said
from holdfast.runtime import lent_connection, listener
from holdfast.runtime.listener import Listener
from holdfast.runtime.transaction import HandlerTransaction
from tests.components.processes import wait_until

SECONDS = 0.5
LONGER = "SELECT pg_sleep(1.5)"


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (deadlines, lent_connection, listener):
        monkeypatch.setattr(module, "ANSWER_SECONDS", SECONDS)
    monkeypatch.setattr(deadlines, "_logged", {})
    monkeypatch.setattr(deadlines, "_silent_since", {})


@pytest.fixture
def pools(postgres_url: str) -> Iterator[Callable[..., Engine]]:
    """Make pools of Holdfast's own, and one that handlers use, too."""
    provider = EngineProvider()

    def make(*, is_ours: bool = True, size: int = 5) -> Engine:
        config = DbConfig(connection_url=postgres_url, pool_size=size)
        return provider.get_engine(answering(config) if is_ours else config)

    yield make
    provider.dispose_all()


def backend(connection: Connection) -> int:
    return int(connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one())


@contextmanager
def frozen(*backends: int) -> Iterator[None]:
    """Stop the server's end of sessions: their sockets stay open, and nothing answers."""
    for pid in backends:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in backends:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def test_an_answer_that_does_not_come_is_given_up_and_logged_once(
    pools: Callable[..., Engine], caplog: pytest.LogCaptureFixture
) -> None:
    engine = pools()
    with engine.connect() as one, engine.connect() as other, frozen(backend(one), backend(other)):
        for connection in (one, other):
            with pytest.raises(OperationalError, match="gave no answer") as given_up:
                said(connection, "SELECT 1")
            assert given_up.value.connection_invalidated
    assert len([line for line in caplog.messages if "it hangs, or was cut off" in line]) == 1
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT 1").scalar_one() == 1


def test_planted_without_the_clock_it_is_waited_for(
    pools: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadlines, "_within", lambda steps, seconds, connection: steps)
    with pools().connect() as connection:
        asked = threading.Thread(target=connection.exec_driver_sql, args=("SELECT 1",))
        with frozen(backend(connection)):
            asked.start()
            asked.join(4 * SECONDS)
            assert asked.is_alive()
        asked.join()


def test_what_is_older_than_the_silence_is_not_used_again_in_any_pool(pools: Callable[..., Engine]) -> None:
    ours, handlers = pools(), pools(is_ours=False)
    with handlers.connect() as connection:
        before = backend(connection)
    with ours.connect() as silent, frozen(backend(silent)), pytest.raises(OperationalError):
        said(silent, "SELECT 1")
    with handlers.connect() as connection:
        assert backend(connection) != before
        after = backend(connection)
    with handlers.connect() as connection:
        assert backend(connection) == after


def test_what_an_application_says_itself_has_no_deadline(pools: Callable[..., Engine]) -> None:
    handlers = pools(is_ours=False, size=1)
    with autocommit(handlers) as connection:
        first = backend(connection)
    with handlers.connect() as connection:  # the session that ours was said on
        connection.exec_driver_sql(LONGER)
        assert backend(connection) == first


def test_our_own_statements_on_a_pool_of_handlers_have_one(
    pools: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadlines, "LONG_SECONDS", SECONDS)
    handlers = pools(is_ours=False, size=1)
    for connection in (autocommit(handlers), limited(handlers.connect())):
        with connection, pytest.raises(OperationalError, match="gave no answer"):
            connection.exec_driver_sql(LONGER)


def test_who_is_not_in_a_hurry_waits_longer(pools: Callable[..., Engine]) -> None:
    with pools().connect() as connection, unhurried():
        connection.exec_driver_sql(LONGER)


def test_what_was_asked_under_a_lease_that_is_lost_is_given_up(pools: Callable[..., Engine]) -> None:
    lost = threading.Event()
    lost.set()
    with pools(is_ours=False).connect() as connection, until_lost(lost):
        with pytest.raises(OperationalError, match="The lease was lost"):
            limited(connection).exec_driver_sql(LONGER)
        assert connection.invalidated


def test_a_host_that_hangs_costs_seconds_when_there_are_others() -> None:
    assert int(deadlines.connect_seconds({"host": "a,b"})) < int(deadlines.connect_seconds({"host": "a"}))
    assert deadlines.connect_seconds({"host": "a", "connect_timeout": "60"}) == "60"


def test_a_commit_without_an_answer_is_ambiguous_and_a_handler_has_no_deadline(pools: Callable[..., Engine]) -> None:
    transaction = HandlerTransaction(pools(is_ours=False), 30.0)
    transaction.connection.exec_driver_sql(LONGER)
    pid = int(transaction.connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one())
    stopped: list[int] = []

    def record(connection: Connection) -> None:
        os.kill(pid, signal.SIGSTOP)
        stopped.append(pid)

    try:
        with pytest.raises(Ambiguous, match="was not answered"):
            transaction.settle(record)
    finally:
        for each in stopped:
            os.kill(each, signal.SIGCONT)


def test_a_listener_notices_silence_and_listens_again(
    pools: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING", "holdfast")
    monkeypatch.setattr(listener, "_ASKED_SECONDS", 0.1)
    engine, heard = pools(), threading.Event()
    subscription = Listener().subscribe(engine, "holdfast_heard", lambda payload: heard.set())
    try:
        wait_until(lambda: sessions(engine), "it to listen")
        with frozen(*sessions(engine)):
            wait_until(lambda: "Nobody is woken" in caplog.text, "it to notice")
            wait_until(lambda: "are heard again" in caplog.text, "it to listen again")
        heard.clear()
        with engine.begin() as connection:
            connection.execute(text("NOTIFY holdfast_heard"))
        assert heard.wait(30)
    finally:
        subscription.close()


def test_pymysql_keeps_them_on_statements_of_ours_only(mariadb_url: str, caplog: pytest.LogCaptureFixture) -> None:
    provider = EngineProvider()
    engine = provider.get_engine(DbConfig(connection_url=mariadb_url, pool_size=1))
    with engine.connect() as connection:
        connection.exec_driver_sql("SELECT SLEEP(1.5)")
        deadlines.set_deadline(connection, SECONDS)
        with pytest.raises(OperationalError) as given_up:
            connection.exec_driver_sql("SELECT SLEEP(1.5)")
        assert given_up.value.connection_invalidated
    with engine.connect() as connection:
        deadlines.set_deadline(connection, SECONDS)
    with engine.connect() as connection:
        connection.exec_driver_sql("SELECT SLEEP(1.5)")
    assert len([line for line in caplog.messages if "it hangs, or was cut off" in line]) == 1
    provider.dispose_all()


def sessions(engine: Engine) -> list[int]:
    """Return the sessions in the database that listen."""
    found = text(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
        "AND state = 'idle' AND (query LIKE 'LISTEN%' OR query = 'SELECT 1')"
    )
    with suppress(DBAPIError), engine.connect() as connection:
        return [int(pid) for pid in connection.execute(found).scalars()]
    return []
