"""After a fail-over nobody waits for the server that hangs; nothing is cut on a server that lives."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy.engine import Connection, Engine, make_url
from sqlalchemy.exc import DBAPIError

from holdfast import DbConfig, EngineProvider
from holdfast.core.errors import UndoneError
from holdfast.database import deadlines, hung_servers
from holdfast.database.deadlines import answering
from holdfast.database.pools import said
from holdfast.runtime.transaction import HandlerTransaction
from tests.components.ports import HOST
from tests.components.proxy import FaultProxy

SECONDS = 0.5
LONGER = "SELECT pg_sleep(1.5)"


class Pair:
    """A server behind two addresses: one that may hang or be refused, and the other."""

    def __init__(self, url: str, proxy: FaultProxy) -> None:
        self.proxy = proxy
        hosts = {"host": f"{HOST},{HOST}", "port": f"{proxy.port},{proxy.target_port}"}
        both = make_url(url).set(host=None, port=None, query=hosts)
        config = DbConfig(connection_url=both.render_as_string(hide_password=False))
        self._provider = EngineProvider()
        self.ours = self._provider.get_engine(answering(config))
        self.handlers = self._provider.get_engine(config)

    def close(self) -> None:
        self._provider.dispose_all()


class Handler:
    """One that has its transaction, and asks something when told to."""

    def __init__(self, engine: Engine) -> None:
        self.transaction = HandlerTransaction(engine, 30.0)
        self.error: DBAPIError | None = None
        self._opened, self._may_ask = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        assert self._opened.wait(30)

    def _run(self) -> None:
        connection = self.transaction.connection
        self._opened.set()
        self._may_ask.wait()
        try:
            connection.exec_driver_sql("SELECT 1")
        except DBAPIError as error:
            self.error = error

    def ask(self) -> None:
        self._may_ask.set()

    def has_ended(self, seconds: float = 30.0) -> bool:
        self.thread.join(seconds)
        return not self.thread.is_alive()


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlines, "ANSWER_SECONDS", SECONDS)
    for module, names in ((deadlines, ("_logged", "_silent_since")), (hung_servers, ("_heard", "_hung", "_made"))):
        for name in names:
            monkeypatch.setattr(module, name, {})


@pytest.fixture
def pair(postgres_url: str) -> Iterator[Pair]:
    port = make_url(postgres_url).port
    assert port is not None
    with FaultProxy(port) as proxy:
        made = Pair(postgres_url, proxy)
        yield made
        made.close()


def give_up(connection: Connection, statement: str = "SELECT 1") -> None:
    with pytest.raises(DBAPIError, match="gave no answer"):
        said(connection, statement)


def fail_over(pair: Pair) -> Handler:
    """Return a handler that waits for the address that hangs, when the URL leads to the other one."""
    handler = Handler(pair.handlers)
    with pair.ours.connect() as silent:
        pair.proxy.refuse()
        pair.proxy.blackhole()
        handler.ask()
        give_up(silent)
    with pair.ours.connect() as connection:
        said(connection, "SELECT 1")
    return handler


@contextmanager
def answers_on(connection: Connection) -> Iterator[None]:
    """Have a server answer all the time."""
    is_over = threading.Event()

    def ask() -> None:
        while not is_over.wait(0.01):
            said(connection, "SELECT 1")

    asking = threading.Thread(target=ask)
    asking.start()
    yield
    is_over.set()
    asking.join()


def test_a_handler_is_cut_off_a_server_that_hangs_once_its_url_leads_to_another(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    handler = fail_over(pair)
    assert handler.has_ended()
    with pytest.raises(UndoneError, match="nothing was kept"):
        handler.transaction.settle(lambda connection: None)
    assert len([line for line in caplog.messages if "which hangs, are cut" in line]) == 1


def test_planted_without_the_cut_it_waits_until_the_server_ends(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hung_servers, "_cut", lambda connection: False)
    handler = fail_over(pair)
    assert not handler.has_ended(4 * SECONDS)
    pair.proxy.pass_through()
    assert handler.has_ended()
    handler.transaction.close()


def slow_while_answering(pair: Pair) -> Handler:
    """Return a handler on an address where a statement was slow and others were answered; the next goes elsewhere."""
    handler = Handler(pair.handlers)
    with pair.ours.connect() as slow, pair.ours.connect() as other, answers_on(other):
        give_up(slow, LONGER)
    pair.proxy.refuse()
    with pair.ours.connect() as connection:
        said(connection, "SELECT 1")
    handler.ask()
    assert handler.has_ended()
    return handler


def test_a_server_that_answers_others_does_not_hang(pair: Pair) -> None:
    handler = slow_while_answering(pair)
    assert handler.error is None
    handler.transaction.settle(lambda connection: None)


def test_planted_without_hearing_the_others_a_slow_statement_cuts_handlers(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadlines, "note_answer", lambda connection: None)
    handler = slow_while_answering(pair)
    assert handler.error is not None
    handler.transaction.close()


def test_a_slow_statement_cuts_nothing_where_the_next_connection_leads_to_the_same_server(pair: Pair) -> None:
    handler = Handler(pair.handlers)
    with pair.ours.connect() as slow:
        give_up(slow, LONGER)
    with pair.ours.connect() as connection:
        said(connection, "SELECT 1")
    handler.ask()
    assert handler.has_ended()
    assert handler.error is None
    handler.transaction.settle(lambda connection: None)
