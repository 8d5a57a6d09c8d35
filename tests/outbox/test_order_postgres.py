"""The order on PostgreSQL: by transaction, then by position, and never past a transaction that is still open."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import text
from sqlalchemy.engine import Connection

from holdfast.outbox.context import ProcessorContext
from holdfast.outbox.housekeeping import OutboxHousekeeping, held_back_by
from holdfast.outbox.message import Message
from holdfast.outbox.reader import OutboxReader, Selection
from holdfast.outbox.statements import named
from tests.clocks import SteppedClock
from tests.outbox.shops import Shop

pytestmark = pytest.mark.component("postgres18")


@pytest.fixture
def shop(postgres_shop: Shop) -> Shop:
    return postgres_shop


class Writer:
    """A transaction that is open until it is told to end."""

    def __init__(self, shop: Shop) -> None:
        self._shop = shop
        self.connection: Connection = shop.app.database.connect()
        self._transaction = self.connection.begin()

    def append(self, *names: str) -> Writer:
        for name in names:
            self._shop.app.outbox.append(self.connection, "Happened", name, message_id=name)
        return self

    def take_transaction_id(self) -> Writer:
        self.connection.execute(text("SELECT pg_current_xact_id()"))
        return self

    def commit(self) -> None:
        self._transaction.commit()
        self.connection.close()

    def rollback(self) -> None:
        self._transaction.rollback()
        self.connection.close()


@contextmanager
def writing(shop: Shop) -> Iterator[Writer]:
    writer = Writer(shop)
    try:
        yield writer
    finally:
        writer.connection.close()


def delivered(shop: Shop, **options: int) -> list[str]:
    """Return what can be read now, in order."""
    batch = OutboxReader(shop.app.database, Selection()).read(None, 1000)
    return [message.data for message in batch.messages]


class Consumer:
    """A processor that remembers what it got."""

    def __init__(self, shop: Shop, **options: object) -> None:
        self.seen: list[str] = []
        self._shop = shop
        shop.app.processor("reader", **options)(self._take)  # type: ignore[arg-type]  # as the test gives them

    def _take(self, messages: list[Message], context: ProcessorContext) -> None:
        self.seen += [message.data for message in messages]

    def run(self) -> list[str]:
        self._shop.run("reader")
        return self.seen


def test_messages_come_in_the_order_in_which_transactions_began_to_write(shop: Shop) -> None:
    with writing(shop) as first, writing(shop) as second:
        first.take_transaction_id()
        second.append("second")
        first.append("first")
        second.commit()
        first.commit()
    assert delivered(shop) == ["first", "second"]


def test_a_fast_later_transaction_waits_for_a_slow_earlier_one(shop: Shop) -> None:
    """[OUTBOX-3]."""
    consumer = Consumer(shop)
    with writing(shop) as slow, writing(shop) as fast:
        slow.append("slow")
        fast.append("fast")
        fast.commit()
        assert consumer.run() == []
        slow.commit()
    assert consumer.run() == ["slow", "fast"]


@pytest.mark.parametrize("count", [1, 5])
def test_a_slow_transaction_is_never_skipped(shop: Shop, count: int) -> None:
    """[OUTBOX-3]."""
    consumer = Consumer(shop, batch_size=2)
    shop.app.processors.register()
    with writing(shop) as slow:
        slow.append(*(f"slow-{number}" for number in range(count)))
        for number in range(4):
            with writing(shop) as fast:
                fast.append(f"fast-{number}")
                fast.commit()
            consumer.run()
        assert consumer.seen == []
        slow.commit()
    assert consumer.run() == [f"slow-{n}" for n in range(count)] + [f"fast-{n}" for n in range(4)]


def test_many_slow_transactions_are_never_skipped(shop: Shop) -> None:
    consumer = Consumer(shop, batch_size=3)
    slow = [Writer(shop).append(f"slow-{number}-a") for number in range(5)]
    for number, writer in enumerate(slow):
        with writing(shop) as fast:
            fast.append(f"fast-{number}")
            fast.commit()
        writer.append(f"slow-{number}-b")
    for number in (3, 1, 4, 0, 2):
        slow[number].commit()
        consumer.run()
    expected = [f"slow-{number}-{part}" for number in range(5) for part in "ab"] + [f"fast-{n}" for n in range(5)]
    assert consumer.run() == expected


def test_reading_past_an_open_transaction_would_skip_its_messages(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug for [OUTBOX-3]: without the bound, the slow transaction's message is never delivered."""
    real = named.statement

    def without_bound(dialect: str, name: str) -> str:
        return real(dialect, name).replace("< pg_snapshot_xmin(pg_current_snapshot())", "< '9223372036854775807'::xid8")

    monkeypatch.setattr(named, "statement", without_bound)
    consumer = Consumer(shop)
    with writing(shop) as slow, writing(shop) as fast:
        slow.append("slow")
        fast.append("fast")
        fast.commit()
        consumer.run()
        slow.commit()
    assert consumer.run() == ["fast"]


def test_gaps_that_a_rollback_leaves_are_harmless(shop: Shop) -> None:
    consumer = Consumer(shop, batch_size=1)
    for number in range(6):
        with writing(shop) as writer:
            writer.append(f"message-{number}")
            if number % 2:
                writer.rollback()
            else:
                writer.commit()
    with shop.app.database.begin() as connection:
        shop.app.outbox.append(connection, "Happened", "kept", message_id="kept")
        savepoint = connection.begin_nested()
        shop.app.outbox.append(connection, "Happened", "undone", message_id="undone")
        savepoint.rollback()
        shop.app.outbox.append(connection, "Happened", "kept too", message_id="kept-too")
    assert consumer.run() == ["message-0", "message-2", "message-4", "kept", "kept too"]


def test_a_whole_transaction_is_delivered_once_and_contiguously(shop: Shop) -> None:
    consumer = Consumer(shop, batch_size=3)
    with writing(shop) as one, writing(shop) as other:
        for number in range(5):
            one.append(f"one-{number}")
            other.append(f"other-{number}")
        other.commit()
        one.commit()
    assert consumer.run() == [f"one-{n}" for n in range(5)] + [f"other-{n}" for n in range(5)]


def test_an_open_old_transaction_is_named_with_its_age(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    """[OUTBOX-5]."""
    clock = SteppedClock()
    housekeeping = OutboxHousekeeping(shop.app.database, shop.app.processors.checkpoints, clock)
    with writing(shop) as old, writing(shop) as newer:
        old.take_transaction_id()
        pid = old.connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
        assert held_back_by(shop.app.database) is None
        newer.append("waits")
        newer.commit()
        found = held_back_by(shop.app.database)
        assert found is not None
        assert f"pid {pid}" in str(found)
        assert "open for 0 s" in str(found)
        assert delivered(shop) == []
        with caplog.at_level(logging.WARNING, logger="holdfast.outbox"), pytest.MonkeyPatch.context() as patch:
            patch.setattr("holdfast.outbox.housekeeping._WORTH_LOGGING_SECONDS", 0.0)
            clock.advance(10)
            housekeeping.warn()
            housekeeping.warn()
        assert [f"pid {pid}" in record.getMessage() for record in caplog.records] == [True]
        old.rollback()
    assert held_back_by(shop.app.database) is None
    assert delivered(shop) == ["waits"]


def test_a_prepared_transaction_is_named(shop: Shop) -> None:
    """[OUTBOX-5]."""
    with shop.app.database.connect() as connection:
        connection.execute(text("SELECT pg_current_xact_id()"))
        connection.execute(text("PREPARE TRANSACTION 'left over'"))
        connection.commit()
    with writing(shop) as newer:
        newer.append("waits")
        newer.commit()
    found = held_back_by(shop.app.database)
    assert found is not None
    assert "prepared transaction 'left over'" in str(found)
    with shop.app.database.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("ROLLBACK PREPARED 'left over'"))
    assert delivered(shop) == ["waits"]


class KeyWriters:
    """Two writers of one key: one writes elsewhere first, and then waits for the lock the other holds."""

    def __init__(self, shop: Shop) -> None:
        shop.execute("CREATE TABLE keys (name text PRIMARY KEY, amount integer NOT NULL)")
        shop.execute("INSERT INTO keys VALUES ('a', 0)")
        with writing(shop) as waited, writing(shop) as holder:
            waited.take_transaction_id()
            self.change(holder, 1)
            holder.commit()
            self.change(waited, 2)
            waited.commit()

    def change(self, writer: Writer, amount: int) -> None:
        writer.connection.execute(text("UPDATE keys SET amount = :amount WHERE name = 'a'"), {"amount": amount})
        writer.append(f"a is {amount}")


def test_the_order_of_transactions_is_not_the_order_of_a_keys_changes(shop: Shop) -> None:
    KeyWriters(shop)
    assert Consumer(shop).run() == ["a is 2", "a is 1"]


def test_the_order_of_positions_is_the_order_of_a_keys_changes(shop: Shop) -> None:
    """[OUTBOX-4]."""
    KeyWriters(shop)
    assert Consumer(shop, order="position").run() == ["a is 1", "a is 2"]


def test_in_the_order_of_positions_a_slow_transaction_is_not_skipped_either(shop: Shop) -> None:
    """[OUTBOX-4]."""
    consumer = Consumer(shop, order="position", batch_size=2)
    with writing(shop) as slow, writing(shop) as fast:
        slow.append("slow")
        fast.append("fast")
        fast.commit()
        assert consumer.run() == []
        slow.commit()
    assert consumer.run() == ["slow", "fast"]


def test_positions_read_without_the_barrier_skip_a_slow_transaction(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted bug for the barrier [OUTBOX-4]."""
    monkeypatch.setattr("holdfast.database.barrier.Barrier._settle", lambda it, at, _: setattr(it, "_bound", at))
    consumer = Consumer(shop, order="position")
    with writing(shop) as slow, writing(shop) as fast:
        slow.append("slow")
        fast.append("fast")
        fast.commit()
        consumer.run()
        slow.commit()
    assert consumer.run() == ["fast"]
