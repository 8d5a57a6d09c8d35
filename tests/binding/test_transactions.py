"""``with writer.transaction()``: all of the block or nothing of it, and no connection left behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any, cast

import pytest
from sqlalchemy import event, text
from sqlalchemy.engine import Connection

from holdfast import ConfigurationError, DbConfig, DbConnectionError, DbWriter, EngineProvider, WriteError
from tests.binding.databases import Database
from tests.binding.statements import sent_to

ENTRIES = "CREATE TABLE entries (id integer PRIMARY KEY, amount integer NOT NULL)"
ALL = "SELECT id, amount FROM entries ORDER BY id"


@pytest.fixture
def entries(database: Database) -> Database:
    database.execute(ENTRIES)
    database.execute("INSERT INTO entries VALUES (1, 100)")
    return database


def test_a_block_commits_all_its_writes_together(entries: Database) -> None:
    writer = entries.writer("entries")
    with writer.transaction() as tx:
        tx.insert(data={"id": 2, "amount": 1})
        writer.update(data={"amount": 99}, pk={"id": 1})
        tx.insert_many(rows=[{"id": 3, "amount": 1}, {"id": 4, "amount": 1}])
        tx.upsert(data={"id": 4, "amount": 2}, conflict_columns=["id"])
        writer.delete(pk={"id": 3})
        assert entries.rows(ALL) == [(1, 100)], "nobody sees a half-done transaction"
    assert entries.rows(ALL) == [(1, 99), (2, 1), (4, 2)]


def test_a_block_that_raises_leaves_nothing_behind(entries: Database) -> None:
    writer = entries.writer("entries")

    def stumble() -> None:
        with writer.transaction():
            writer.insert(data={"id": 2, "amount": 1})
            raise KeyError

    with pytest.raises(KeyError):
        stumble()
    assert entries.rows(ALL) == [(1, 100)]
    writer.insert(data={"id": 2, "amount": 1})
    assert entries.rows(ALL) == [(1, 100), (2, 1)], "the writer goes on outside of the block"


def test_one_writer_can_have_one_transaction_after_the_other(entries: Database) -> None:
    writer = entries.writer("entries")
    for number in (2, 3):
        with writer.transaction():
            writer.insert(data={"id": number, "amount": 0})
    assert entries.rows(ALL) == [(1, 100), (2, 0), (3, 0)]


def test_transactions_do_not_nest(entries: Database) -> None:
    writer = entries.writer("entries")
    with writer.transaction():
        writer.insert(data={"id": 2, "amount": 1})
        with pytest.raises(WriteError, match=r"already active .* do not nest"), writer.transaction():
            pytest.fail("must not be entered")
        writer.insert(data={"id": 3, "amount": 1})
    assert entries.rows(ALL) == [(1, 100), (2, 1), (3, 1)], "the outer one is untouched"


def test_closing_inside_the_block_rolls_back_and_refuses_what_follows(entries: Database) -> None:
    writer = entries.writer("entries")
    with writer.transaction():
        writer.insert(data={"id": 2, "amount": 1})
        writer.close()
        assert entries.connections_in_use == 0
        with pytest.raises(WriteError, match=r"closed inside its transaction\(\), which was rolled back"):
            writer.insert(data={"id": 3, "amount": 1})
        with pytest.raises(WriteError, match="closed inside"), writer.transaction():
            pytest.fail("must not be entered")
    assert entries.rows(ALL) == [(1, 100)]


def test_a_failed_write_dooms_the_block_even_when_its_error_is_caught(entries: Database) -> None:
    """Otherwise PostgreSQL would take the commit for a rollback, and say nothing."""
    writer = entries.writer("entries")

    def go_on() -> None:
        with writer.transaction():
            writer.insert(data={"id": 2, "amount": 1})
            with pytest.raises(WriteError, match="insert into 'entries' failed"):
                writer.insert_many(rows=[{"id": 3, "amount": 1}, {"id": 1, "amount": 1}])

    with pytest.raises(WriteError, match=r"An earlier write inside this transaction\(\) failed"):
        go_on()
    assert entries.rows(ALL) == [(1, 100)]


def test_nothing_more_is_sent_after_a_failed_write(entries: Database) -> None:
    writer = entries.writer("entries")

    def go_on() -> None:
        with writer.transaction():
            with pytest.raises(WriteError, match="'entries' failed"):
                writer.insert(data={"id": 1, "amount": 1})
            with sent_to(entries.engine) as sent, pytest.raises(WriteError, match="An earlier write"):
                writer.insert(data={"id": 2, "amount": 1})
            assert sent == []

    with pytest.raises(WriteError, match="An earlier write"):
        go_on()
    assert entries.rows(ALL) == [(1, 100)]


WRONG_WRITES: dict[str, Callable[[DbWriter], None]] = {
    "unknown column": lambda writer: writer.insert(data={"color": "red"}),
    "different columns": lambda writer: writer.insert_many(rows=[{"id": 3, "amount": 1}, {"id": 4}]),
    "no row": lambda writer: writer.insert(data=cast("Any", [1])),
    "wrong key": lambda writer: writer.update(data={"amount": 1}, pk={"amount": 1}),
    "no key": lambda writer: writer.delete(pk={"id": None}),
    "no conflict columns": lambda writer: writer.upsert(data={"id": 3}, conflict_columns=cast("Any", "id")),
}


@pytest.mark.parametrize("wrong", WRONG_WRITES)
def test_a_write_we_refuse_ourselves_dooms_the_block_too(entries: Database, wrong: str) -> None:
    """Whoever catches its error and goes on must not keep one half of what belongs together."""
    writer = entries.writer("entries")

    def go_on() -> None:
        with writer.transaction():
            writer.insert(data={"id": 2, "amount": 1})
            with pytest.raises((ConfigurationError, WriteError)):
                WRONG_WRITES[wrong](writer)

    with pytest.raises(WriteError, match=r"An earlier write inside this transaction\(\) failed"):
        go_on()
    assert entries.rows(ALL) == [(1, 100)]


def test_a_transaction_needs_no_second_connection(entries: Database) -> None:
    """Not even for looking up the table: a full pool of transactions would wait for each other."""
    provider = EngineProvider()
    config = DbConfig(connection_url=entries.url, pool_size=1, engine_kwargs={"max_overflow": 0, "pool_timeout": 0.01})
    writer = DbWriter(db_config=config, table="entries", engine_provider=provider)
    with writer.transaction():
        writer.insert(data={"id": 2, "amount": 1})
        writer.insert(data={"id": 3, "amount": 1})
    with pytest.raises(ConfigurationError, match="no column"), writer.transaction():
        writer.insert(data={"color": "red"})
    assert entries.rows(ALL) == [(1, 100), (2, 1), (3, 1)]
    provider.dispose_all()


def _in_a_thread(step: Callable[[], None]) -> BaseException | None:
    """Run a step in a thread that shares nothing with this one; return what it raised."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(step).exception()


def test_another_thread_cannot_open_a_second_block_on_the_same_writer(entries: Database) -> None:
    writer = entries.writer("entries")

    def open_another() -> None:
        with writer.transaction():
            pytest.fail("must not be entered")

    with writer.transaction():
        writer.insert(data={"id": 2, "amount": 1})
        assert "another thread or task needs a writer of its own" in str(_in_a_thread(open_another))
        writer.insert(data={"id": 3, "amount": 1})
    assert entries.rows(ALL) == [(1, 100), (2, 1), (3, 1)]


def test_a_transaction_that_gets_no_connection_can_be_tried_again(entries: Database) -> None:
    provider = EngineProvider()
    config = DbConfig(connection_url=entries.url, pool_size=1, engine_kwargs={"max_overflow": 0, "pool_timeout": 0.01})
    writer = DbWriter(db_config=config, table="entries", engine_provider=provider)
    writer.insert(data={"id": 2, "amount": 1})
    with (
        provider.get_engine(config).connect(),
        pytest.raises(DbConnectionError, match="No free connection"),
        writer.transaction(),
    ):
        pytest.fail("must not be entered")
    with writer.transaction():
        writer.insert(data={"id": 3, "amount": 1})
    assert entries.rows(ALL) == [(1, 100), (2, 1), (3, 1)]
    provider.dispose_all()


def test_a_write_lock_that_is_not_had_leaves_no_transaction_open(sqlite: Database) -> None:
    sqlite.execute(ENTRIES)
    config = DbConfig(connection_url=sqlite.url, connect_args={"timeout": 0})
    writer = DbWriter(db_config=config, table="entries", engine_provider=sqlite.provider)
    with sqlite.outside.connect() as other:
        other.execute(text("INSERT INTO entries VALUES (7, 7)"))
        with pytest.raises(WriteError, match="The transaction failed: database is locked"), writer.transaction():
            pytest.fail("must not be entered")
        other.rollback()
    with writer.transaction():
        writer.insert(data={"id": 1, "amount": 1})
    assert sqlite.rows(ALL) == [(1, 1)]
    assert sqlite.provider.get_engine(config).pool.checkedout() == 0  # type: ignore[attr-defined]  # a QueuePool has it


def test_a_commit_that_fails_is_a_write_error(postgres: Database) -> None:
    postgres.execute("CREATE TABLE heads (id integer PRIMARY KEY)")
    postgres.execute(
        "CREATE TABLE tails (id integer PRIMARY KEY, head integer REFERENCES heads DEFERRABLE INITIALLY DEFERRED)"
    )
    writer = postgres.writer("tails")
    with pytest.raises(WriteError, match=r"The commit failed: .*violates foreign key"), writer.transaction():
        writer.insert(data={"id": 1, "head": 99})
    assert postgres.rows("SELECT * FROM tails") == []


@pytest.mark.parametrize("in_a_block", [False, True])
def test_a_commit_whose_answer_is_lost_says_that_nobody_knows(postgres: Database, in_a_block: bool) -> None:
    postgres.execute(ENTRIES)
    writer = postgres.writer("entries")
    others = "FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = current_database()"
    event.listen(
        postgres.engine, "commit", lambda _: postgres.rows(f"SELECT pg_terminate_backend(pid, 10000) {others}")
    )
    said = r"may or may not have taken effect\. Read the rows before"
    with pytest.raises(WriteError, match=said), writer.transaction() if in_a_block else nullcontext():
        writer.insert(data={"id": 1, "amount": 1})


def test_a_session_that_dies_inside_the_block_is_a_write_error_even_when_caught(postgres: Database) -> None:
    postgres.execute(ENTRIES)
    writer = postgres.writer("entries")
    others = "FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = current_database()"

    def go_on() -> None:
        with writer.transaction():
            writer.insert(data={"id": 1, "amount": 1})
            postgres.rows(f"SELECT pg_terminate_backend(pid, 10000) {others}")
            with pytest.raises(
                WriteError, match=r"'entries' failed: .* The connection broke\. Nothing was written: run"
            ):
                writer.insert(data={"id": 2, "amount": 1})

    with pytest.raises(WriteError, match="An earlier write"):
        go_on()
    assert postgres.rows(ALL) == []
    writer.insert(data={"id": 3, "amount": 1})
    assert postgres.rows(ALL) == [(3, 1)]


def test_a_deadlock_that_undid_everything_is_not_committed_past(mariadb: Database) -> None:
    """MariaDB rolls the whole transaction of a deadlock's victim back; the block must not commit what came after."""
    mariadb.execute(ENTRIES)
    mariadb.execute("INSERT INTO entries VALUES (1, 0), (2, 0)")
    victim = mariadb.writer("entries")

    def cross(rival: Connection) -> None:
        with victim.transaction():
            victim.insert(data={"id": 20, "amount": 1})
            victim.update(data={"amount": 2}, pk={"id": 2})
            crossing = threading.Thread(target=rival.execute, args=[text("UPDATE entries SET amount = 1 WHERE id = 2")])
            crossing.start()
            with pytest.raises(WriteError, match="Deadlock"):
                victim.update(data={"amount": 2}, pk={"id": 1})
            crossing.join()

    with mariadb.outside.connect() as rival:
        # the rival has changed more rows, so that the victim is the victim
        rival.execute(text("INSERT INTO entries VALUES (10, 0), (11, 0), (12, 0), (13, 0)"))
        rival.execute(text("UPDATE entries SET amount = 1 WHERE id = 1"))
        with pytest.raises(WriteError, match="An earlier write"):
            cross(rival)
        rival.rollback()
    assert mariadb.rows(ALL) == [(1, 0), (2, 0)]
