"""How a row could be skipped on MariaDB, one test for each trap; and what is refused because nothing is sound."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy.engine import Connection, make_url
from sqlalchemy.exc import OperationalError

from holdfast import SqlAlchemySource
from holdfast.core.errors import MissingGrantError, SourceConfigurationError
from holdfast.trigger.sources.horizons import mysql, ticks
from tests.components.mariadb import MariadbServer
from tests.components.processes import wait_until
from tests.trigger.late_commits import kinds, plants, scenarios
from tests.trigger.late_commits.items import Count, Items, Poller
from tests.trigger.late_commits.kinds import CursorKind

on_every_kind = pytest.mark.parametrize("kind", kinds.MARIADB, ids=str)
on_updatable = pytest.mark.parametrize("kind", [kinds.MY_TIMESTAMP, kinds.MY_DATETIME], ids=str)
on_each_horizon = pytest.mark.parametrize("kind", [kinds.MY_TIMESTAMP, kinds.MY_IDENTITY], ids=str)
on_time = pytest.mark.parametrize("kind", [kinds.MY_TIMESTAMP], ids=str)
on_seconds = pytest.mark.parametrize("kind", [kinds.MY_DATETIME_0], ids=str)


@pytest.fixture
def items(kind: CursorKind, mariadb_url: str) -> Iterator[Items]:
    opened = Items(kind, mariadb_url)
    yield opened
    opened.close()


@on_every_kind
def test_a_late_commit_is_delivered(items: Items) -> None:
    assert scenarios.late_commit(items, items.poller()) == Count(2, 2, 0, frozenset())


@on_every_kind
def test_without_a_horizon_a_late_commit_is_lost(items: Items) -> None:
    assert scenarios.late_commit(items, items.poller("none")).lost == {1}


@on_each_horizon
def test_rows_under_savepoints_are_delivered(items: Items) -> None:
    assert scenarios.savepoints(items, items.poller()).lost == frozenset()


@on_updatable
def test_an_update_that_waited_for_a_row_lock_is_delivered(items: Items) -> None:
    assert scenarios.update_that_waited(items, items.poller()).lost == frozenset()


@on_updatable
def test_without_a_horizon_an_update_that_waited_is_lost(items: Items) -> None:
    assert scenarios.update_that_waited(items, items.poller("none")).lost >= {1}


@on_seconds
def test_a_lower_key_updated_later_in_the_same_second_is_delivered(items: Items) -> None:
    assert scenarios.lower_key_in_the_same_tick(items, items.poller()).lost == frozenset()


@on_seconds
def test_without_a_horizon_a_lower_key_in_the_same_second_is_lost(items: Items) -> None:
    assert scenarios.lower_key_in_the_same_tick(items, items.poller("none")).lost >= {1}


def runs(items: Items, part: str) -> bool:
    """Return whether a session is running a statement with this in its text or state."""
    sessions = "information_schema.processlist WHERE id <> CONNECTION_ID() AND command <> 'Sleep'"
    shown = "CONCAT(COALESCE(state, ''), COALESCE(info, ''))"
    return bool(items.scalar(f"SELECT count(*) FROM {sessions} AND {shown} LIKE '%{part}%'"))


def statement_before_its_transaction(items: Items, poller: Poller) -> Count:
    """A statement has its time, and waits for a table to be unlocked before it opens a transaction."""
    items.execute("CREATE TABLE gate (version INT NOT NULL)")
    items.execute("INSERT INTO gate VALUES (1)")
    keeper, writer = items.session(), items.session()
    keeper.run("LOCK TABLES gate WRITE")
    columns, values = ("version", "version") if items.kind.insert_only else ("id, version", "1, version")
    waiting = writer.start(f"INSERT INTO items ({columns}) SELECT {values} FROM gate")
    wait_until(lambda: runs(items, "metadata lock"), "the statement waits for the table")
    items.execute(items.insert(2))
    items.let_tick_pass(1 if items.kind.insert_only else 2)
    items.look(poller, 1 if items.kind.insert_only else 2)
    keeper.run("UNLOCK TABLES")
    waiting.result(timeout=30)
    items.look(poller, 2)
    writer.commit()
    return items.drain(poller)


@on_time
def test_a_statement_that_has_no_transaction_yet_is_waited_for(items: Items) -> None:
    assert statement_before_its_transaction(items, items.poller()).lost == frozenset()


@on_time
def test_without_a_horizon_a_statement_that_had_no_transaction_yet_is_lost(items: Items) -> None:
    assert statement_before_its_transaction(items, items.poller("none")).lost == {1}


@on_time
def test_a_statement_inside_a_stored_function_is_waited_for(items: Items) -> None:
    """While the function runs, the server shows its inner statements, each with a number and a time of its own."""
    items.execute(
        "CREATE FUNCTION through_two_gates() RETURNS BIGINT DETERMINISTIC NO SQL BEGIN "
        "DO GET_LOCK('gate 1', 60); DO GET_LOCK('gate 2', 60); RETURN 1; END"
    )
    poller, keeper, writer = items.poller(), items.session(), items.session(autocommit=True)
    keeper.run("SELECT GET_LOCK('gate 1', 0), GET_LOCK('gate 2', 0)")
    keeper.commit()
    waiting = writer.start("INSERT INTO items (id) VALUES (through_two_gates())")
    wait_until(lambda: runs(items, "gate 1"), "the function waits at its first gate")
    items.execute(items.insert(2))
    items.let_tick_pass(2)
    items.look(poller, 2)
    keeper.run("SELECT RELEASE_LOCK('gate 1')")
    keeper.commit()
    wait_until(lambda: runs(items, "gate 2"), "the function waits at its second gate")
    items.look(poller, 2)
    keeper.run("SELECT RELEASE_LOCK('gate 2')")
    keeper.commit()
    waiting.result(timeout=30)
    assert items.drain(poller) == Count(2, 2, 0, frozenset())


@on_each_horizon
def test_an_xa_transaction_whose_session_is_gone_is_waited_for(items: Items) -> None:
    name = f"xa {make_url(items.url).database}"
    poller, session, other = items.poller(), items.session(autocommit=True), items.session(autocommit=True)
    for each in (f"XA START '{name}'", items.insert(1), f"XA END '{name}'"):
        session.run(each)
    items.execute(items.insert(2))
    items.let_tick_pass(2)
    items.look(poller, 2)
    session.run(f"XA PREPARE '{name}'")
    thread = session.scalar("SELECT CONNECTION_ID()")
    session.vanish()
    listed = f"SELECT count(*) FROM information_schema.processlist WHERE id = {thread}"
    wait_until(lambda: not other.scalar(listed), "the session is gone")
    restarted = items.poller()
    items.look(poller, 2)
    items.look(restarted, 2)
    assert not poller.delivered
    assert not restarted.delivered
    assert restarted.held_back_by == ("a prepared XA transaction",)
    other.run(f"XA COMMIT '{name}'")
    assert items.drain(poller) == Count(2, 2, 0, frozenset())


@contextmanager
def monitoring(items: Items) -> Iterator[None]:
    """Read the list of transactions so often that InnoDB never renews its copy."""
    stop, running = threading.Event(), threading.Event()

    def read() -> None:
        with items.engine.connect() as connection:
            while not stop.is_set():
                connection.exec_driver_sql("SELECT COUNT(*) FROM information_schema.innodb_trx").scalar()
                running.set()
                stop.wait(0.01)

    with ThreadPoolExecutor(max_workers=1) as thread:
        reading = thread.submit(read)
        assert running.wait(30)
        try:
            yield
        finally:
            stop.set()
            reading.result(timeout=30)


def late_commit_unseen_in_the_copy(items: Items, poller: Poller) -> Count:
    with monitoring(items):
        slow = items.session()
        slow.run(items.insert(1))
        items.execute(items.insert(2))
        items.let_tick_pass(2)
        items.look(poller, 2)
    items.look(poller, 2)
    slow.commit()
    return items.drain(poller)


@on_each_horizon
def test_a_transaction_missing_from_an_old_copy_is_not_overlooked(items: Items) -> None:
    assert late_commit_unseen_in_the_copy(items, items.poller()) == Count(2, 2, 0, frozenset())


@on_each_horizon
def test_a_copy_that_is_never_renewed_is_named(items: Items) -> None:
    poller = items.poller()
    with monitoring(items):
        wait_until(lambda: poller.poll() or "innodb_trx" in "".join(poller.held_back_by), "the copy is worth telling")
    items.execute(items.insert(1))
    assert items.drain(poller).lost == frozenset()


@on_each_horizon
def test_many_pollers_do_not_keep_each_other_from_reading(items: Items) -> None:
    pollers = [items.poller() for _ in range(20)]
    items.execute(items.insert(1))
    with ThreadPoolExecutor(max_workers=6) as threads:
        for done in [threads.submit(poller.poll_until, 1) for poller in pollers]:
            done.result(timeout=60)


@on_each_horizon
def test_a_long_read_does_not_hold_the_reader_back(items: Items) -> None:
    items.execute(items.insert(1))
    poller, report = items.poller(), items.session(autocommit=True)
    running = report.start("SELECT SLEEP(60) FROM items")
    wait_until(lambda: runs(items, "SLEEP"), "the report runs")
    poller.poll_until(1)
    assert not running.done()
    items.execute(f"KILL QUERY {items.scalar(SLEEPER)}")
    with pytest.raises(OperationalError, match="interrupted"):
        running.result(timeout=30)


SLEEPER = "SELECT id FROM information_schema.processlist WHERE info LIKE 'SELECT SLEEP%'"


@contextmanager
def between_the_listings(then: Callable[[], None]) -> Iterator[None]:
    """Do something after the first of the two lists that a look takes, whichever that is."""
    waiting = [then]

    def happen() -> None:
        if waiting:
            waiting.pop()()

    def statements(connection: Connection) -> dict[int, mysql.Statement]:
        found = list_statements(connection)
        happen()
        return found

    def transactions(connection: Connection, clock: int) -> tuple[int, list[Any]]:
        copied_at, rows = list_transactions(connection, clock)
        if copied_at >= clock:
            happen()
        return copied_at, rows

    list_statements, list_transactions = mysql._statements, mysql._transactions
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mysql, "_statements", statements)
        patch.setattr(mysql, "_transactions", transactions)
        yield


def statement_that_ends_between_the_listings(items: Items, poller: Poller) -> Count:
    """A session runs a statement at the first listing, and sits idle in its transaction at the second."""
    items.execute("CREATE TABLE gate (version INT NOT NULL)")
    poller.source.open()
    keeper, writer = items.session(), items.session()
    keeper.run("LOCK TABLES gate WRITE")
    waiting = writer.start("INSERT INTO items (id) SELECT 1 FROM (SELECT COUNT(*) FROM gate) AS passed")
    wait_until(lambda: runs(items, "metadata lock"), "the statement waits for the table")
    items.execute(items.insert(2))
    items.let_tick_pass(2)

    def let_it_end() -> None:
        keeper.run("UNLOCK TABLES")
        waiting.result(timeout=30)

    with between_the_listings(let_it_end):
        items.look(poller, 2)
    writer.commit()
    return items.drain(poller)


@on_time
def test_a_statement_that_ends_between_the_listings_is_waited_for(items: Items) -> None:
    assert statement_that_ends_between_the_listings(items, items.poller()) == Count(2, 2, 0, frozenset())


def list_transactions_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def look(barrier: mysql.SessionBarrier, connection: Connection) -> tuple[object, mysql.Listing] | None:
        position, clock = barrier._sample(connection), mysql._clock(connection)
        if clock - barrier._asked_at < barrier._pause:
            return None
        barrier._asked_at = clock
        copied_at, rows = mysql._transactions(connection, clock)
        return None if copied_at < clock else (position, mysql._listing(mysql._statements(connection), rows))

    monkeypatch.setattr(mysql.SessionBarrier, "_look", look)


def trust_any_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    list_transactions = mysql._transactions
    monkeypatch.setattr(
        mysql, "_transactions", lambda connection, clock: (clock, list_transactions(connection, clock)[1])
    )


def ignore_statements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mysql, "_statements", lambda connection: {})


def do_not_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mysql, "floor_to_precision", lambda moment, digits: moment)


@pytest.mark.parametrize(
    ("kind", "plant", "scenario"),
    [
        (kinds.MY_TIMESTAMP, list_transactions_first, statement_that_ends_between_the_listings),
        (kinds.MY_TIMESTAMP, ignore_statements, statement_before_its_transaction),
        (kinds.MY_TIMESTAMP, trust_any_copy, late_commit_unseen_in_the_copy),
        (kinds.MY_IDENTITY, trust_any_copy, late_commit_unseen_in_the_copy),
        (kinds.MY_TIMESTAMP, plants.do_not_wait, scenarios.update_that_waited),
        (kinds.MY_IDENTITY, plants.do_not_wait, scenarios.late_commit),
        (kinds.MY_DATETIME_0, do_not_round, scenarios.lower_key_in_the_same_tick),
        (kinds.MY_DATETIME_0, plants.read_up_to_the_bound, scenarios.lower_key_in_the_same_tick),
    ],
    ids=lambda given: getattr(given, "__name__", str(given)),
)
def test_a_planted_bug_is_caught(
    items: Items,
    plant: Callable[[pytest.MonkeyPatch], None],
    scenario: Callable[[Items, Poller], Count],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    assert scenario(items, items.poller()).lost >= {1}


@on_each_horizon
def test_a_user_that_cannot_see_other_sessions_is_refused_until_it_is_granted(items: Items) -> None:
    url = make_url(items.url)
    user = f"reader_{url.database}"
    items.execute(f"CREATE USER '{user}'@'%'")
    items.execute(f"GRANT SELECT ON {url.database}.* TO '{user}'@'%'")
    source = SqlAlchemySource(
        url=url.set(username=user).render_as_string(),
        table="items",
        cursor_column=items.kind.cursor,
        pk_columns=["id"],
        horizon="auto",
        engine_provider=items.provider,
    )
    with pytest.raises(MissingGrantError, match=f"GRANT PROCESS ON \\*.\\* TO '{user}'@'%'"):
        source.open()
    items.execute(f"GRANT PROCESS ON *.* TO '{user}'@'%'")
    items.provider.dispose_all()  # a privilege of this kind counts from the next connection on
    items.execute(items.insert(1))
    Poller(source).poll_until(1)
    items.execute(f"DROP USER '{user}'@'%'")


@on_each_horizon
def test_a_replica_is_refused(items: Items) -> None:
    """A server that follows another one, even one it cannot reach."""
    items.execute("CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = 1, MASTER_USER = 'nobody'")
    items.execute("START SLAVE")
    try:
        wait_until(lambda: runs(items, "Slave") or runs(items, "master"), "the replication threads run")
        with pytest.raises(SourceConfigurationError, match="another server wrote"):
            items.source().open()
    finally:
        items.execute("STOP SLAVE")
        items.execute("RESET SLAVE ALL")
    items.source().open()


def test_the_hour_that_summer_time_repeats_is_read_only_after_it_has_passed_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    with MariadbServer() as server:
        items = Items(kinds.MY_DATETIME, server.url(server.create_database()))
        with items.engine.connect() as connection:

            def bound(moment: str) -> str:
                ahead = ticks.moments_ahead(datetime.fromisoformat(moment))
                return str(mysql._local_times(connection, ahead, None).bound)

            assert bound("2026-11-01 04:59:30") == "2026-11-01 00:59:30"
            assert bound("2026-11-01 05:01:30") == "2026-11-01 01:00:00"
            assert bound("2026-11-01 05:59:30") == "2026-11-01 01:00:00"
            assert bound("2026-11-01 06:01:30") == "2026-11-01 01:01:30"
        assert scenarios.late_commit(items, items.poller()) == Count(2, 2, 0, frozenset())
        items.close()
