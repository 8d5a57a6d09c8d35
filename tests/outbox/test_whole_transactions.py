"""Effects and checkpoint are one transaction to the end, whatever happens in between."""

from __future__ import annotations

import threading
from contextlib import suppress

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, IntegrityError

from holdfast.core.errors import LeaseConflictError
from holdfast.core.retry import RetryPolicy
from holdfast.outbox.context import ProcessorContext
from holdfast.outbox.message import Message
from holdfast.records.tables import SqlLetterTable
from tests.outbox.shops import Shop, write_effects

AT_ONCE = RetryPolicy(max_retries=0)
ONCE_MORE = RetryPolicy(max_retries=1, base_delay_seconds=0.001, max_delay_seconds=0.001)


@pytest.mark.component("postgres18")
def test_a_failed_statement_that_was_caught_fails_the_batch(postgres_shop: Shop) -> None:
    """PostgreSQL answers the COMMIT of a spoilt transaction with a ROLLBACK, and no error."""
    postgres_shop.append(1)

    @postgres_shop.app.processor("totals", retry_policy=AT_ONCE)
    def totals(messages: list[Message], context: ProcessorContext) -> None:
        write_effects(messages, context)
        with suppress(DBAPIError):
            context.transaction.execute(text("SELECT 1 / 0"))

    with pytest.raises(LeaseConflictError, match=r"failed and was caught.*begin_nested"):
        postgres_shop.run()
    assert postgres_shop.effects() == []
    assert postgres_shop.place().checkpoint is None


def test_a_statement_that_may_fail_has_a_savepoint(shop: Shop) -> None:
    shop.execute("CREATE TABLE once (id integer PRIMARY KEY)")
    shop.execute("INSERT INTO once VALUES (1)")
    shop.append(1)

    @shop.app.processor("totals", retry_policy=AT_ONCE)
    def totals(messages: list[Message], context: ProcessorContext) -> None:
        write_effects(messages, context)
        with suppress(IntegrityError), context.transaction.begin_nested():
            context.transaction.execute(text("INSERT INTO once VALUES (1)"))

    assert shop.run() == 1
    assert shop.effects() == [1]


def test_a_conflict_that_undoes_everything_on_sqlite_fails_the_batch(sqlite_shop: Shop) -> None:
    sqlite_shop.execute("CREATE TABLE once (id integer PRIMARY KEY)")
    sqlite_shop.execute("INSERT INTO once VALUES (1)")
    sqlite_shop.append(1)
    broken = [True]

    @sqlite_shop.app.processor("totals", retry_policy=ONCE_MORE)
    def totals(messages: list[Message], context: ProcessorContext) -> None:
        if broken:
            broken.clear()
            with suppress(DBAPIError):
                context.transaction.execute(text("INSERT OR ROLLBACK INTO once VALUES (1)"))
        write_effects(messages, context)

    sqlite_shop.run()
    sqlite_shop.run()
    assert sqlite_shop.effects() == [1]


@pytest.mark.component("mariadb")
def test_a_deadlock_that_was_caught_fails_the_batch_on_mariadb(mariadb_shop: Shop) -> None:
    shop = mariadb_shop
    shop.execute("CREATE TABLE accounts (id int PRIMARY KEY, amount int NOT NULL) ENGINE = InnoDB")
    shop.execute("INSERT INTO accounts VALUES (1, 0), (2, 0)")
    shop.append(1)
    calls: list[int] = []
    caught: list[int] = []
    change = text("UPDATE accounts SET amount = amount + 1 WHERE id = :id")

    def deadlock(ready: threading.Event) -> None:
        with shop.app.database.connect() as connection, connection.begin() as transaction:
            connection.execute(text("INSERT INTO effects SELECT 'heavy', 99 FROM seq_1_to_500"))
            connection.execute(change, {"id": 2})
            ready.set()
            connection.execute(change, {"id": 1})
            transaction.rollback()

    @shop.app.processor("totals", retry_policy=ONCE_MORE)
    def totals(messages: list[Message], context: ProcessorContext) -> None:
        calls.append(1)
        context.transaction.execute(change, {"id": 1})
        if len(calls) == 1:
            ready = threading.Event()
            other = threading.Thread(target=deadlock, args=(ready,))
            other.start()
            ready.wait(10)
            try:
                context.transaction.execute(change, {"id": 2})
            except DBAPIError as error:
                caught.append(error.orig.args[0] if error.orig else 0)
            other.join()
        write_effects(messages, context)

    shop.run()
    assert caught == [1213]
    assert shop.effects() == [1]


@pytest.mark.component("mariadb")
@pytest.mark.parametrize(
    "statement", ["TRUNCATE effects", "CREATE TABLE late (id int)", "commit", " START  TRANSACTION"]
)
def test_what_would_commit_half_of_it_on_mariadb_is_refused(mariadb_shop: Shop, statement: str) -> None:
    mariadb_shop.append(1)

    @mariadb_shop.app.processor("totals", retry_policy=AT_ONCE)
    def totals(messages: list[Message], context: ProcessorContext) -> None:
        write_effects(messages, context)
        context.transaction.execute(text(statement))

    with pytest.raises(LeaseConflictError, match="would end"):
        mariadb_shop.run()
    assert mariadb_shop.effects() == []
    assert mariadb_shop.place().checkpoint is None


@pytest.mark.parametrize("statement", ["COMMIT", "rollback", "END"])
def test_ending_the_transaction_by_a_statement_is_refused(shop: Shop, statement: str) -> None:
    shop.append(1)

    @shop.app.processor("totals", retry_policy=AT_ONCE)
    def totals(messages: list[Message], context: ProcessorContext) -> None:
        write_effects(messages, context)
        context.transaction.exec_driver_sql(statement)

    with pytest.raises(LeaseConflictError, match="would end"):
        shop.run()
    assert shop.effects() == []


@pytest.mark.component("postgres18")
def test_a_commit_the_database_refuses_is_the_handlers_failure(postgres_shop: Shop) -> None:
    shop = postgres_shop
    shop.execute("CREATE TABLE later (id integer UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    shop.append(1)

    @shop.app.processor("totals", retry_policy=AT_ONCE, on_error="dead_letter")
    def totals(messages: list[Message], context: ProcessorContext) -> None:
        write_effects(messages, context)
        context.transaction.execute(text("INSERT INTO later VALUES (1), (1)"))

    shop.run()
    [letter] = SqlLetterTable(shop.app.database).page().items
    assert "refused the commit" in letter.error_message
    assert shop.effects() == []


def test_a_handler_that_rolls_back_fails_by_its_policy(shop: Shop) -> None:
    shop.append(1)

    @shop.app.processor("totals", retry_policy=AT_ONCE, on_error="dead_letter")
    def totals(messages: list[Message], context: ProcessorContext) -> None:
        write_effects(messages, context)
        context.transaction.rollback()

    shop.run()
    assert len(SqlLetterTable(shop.app.database).page().items) == 1
    assert shop.effects() == []
