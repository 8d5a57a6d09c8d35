"""On MariaDB a sequencer numbers committed messages [OUTBOX-6]; whoever lost its lease numbers nothing."""

from __future__ import annotations

import threading

import pytest
from sqlalchemy import text

from holdfast.core.errors import LeaseConflictError, LostLeaseError
from holdfast.outbox import sequencer as sequencing
from holdfast.outbox.reader import OutboxReader, Selection
from holdfast.outbox.sequencer import in_order
from tests.outbox.shops import Shop

pytestmark = pytest.mark.component("mariadb")


@pytest.fixture
def shop(mariadb_shop: Shop) -> Shop:
    return mariadb_shop


def delivered(shop: Shop) -> list[str]:
    return [message.data for message in OutboxReader(shop.app.database, Selection()).read(None, 1000).messages]


def append(shop: Shop, connection: object, *names: str) -> None:
    for name in names:
        shop.app.outbox.append(connection, "Happened", name, message_id=name)


def test_transactions_are_numbered_whole_by_their_last_append() -> None:
    assert in_order([(1, "a"), (2, "b"), (3, "a"), (4, "b"), (5, "c")]) == [1, 3, 2, 4, 5]
    assert in_order([(1, "a"), (2, "b"), (3, "a")]) == [2, 1, 3]


def test_nothing_is_readable_before_it_is_numbered(shop: Shop) -> None:
    shop.append(1)
    assert delivered(shop) == []
    assert shop.app.processors.sequencer().number(1) == 1
    assert len(delivered(shop)) == 1
    assert shop.app.processors.sequencer().number(1) == 0


def test_an_open_transaction_is_neither_waited_for_nor_skipped(shop: Shop) -> None:
    """[OUTBOX-3]."""
    sequencer = shop.app.processors.sequencer()
    with shop.app.database.connect() as slow, slow.begin() as transaction:
        append(shop, slow, "slow-1", "slow-2")
        with shop.app.database.begin() as fast:
            append(shop, fast, "fast")
        assert sequencer.number(1) == 1
        assert delivered(shop) == ["fast"]
        append(shop, slow, "slow-3")
        transaction.commit()
    assert sequencer.number(1) == 3
    assert delivered(shop) == ["fast", "slow-1", "slow-2", "slow-3"]


def test_a_transaction_is_numbered_in_a_row_however_its_appends_lie(shop: Shop) -> None:
    with shop.app.database.connect() as one, shop.app.database.connect() as other:
        first, second = one.begin(), other.begin()
        for number in range(3):
            append(shop, one, f"one-{number}")
            append(shop, other, f"other-{number}")
        second.commit()
        first.commit()
    shop.app.processors.sequencer().number(1)
    assert delivered(shop) == ["one-0", "one-1", "one-2", "other-0", "other-1", "other-2"]


def test_a_transaction_is_numbered_in_a_row_at_the_limit_of_a_batch(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sequencing, "_MOST_AT_ONCE", 2)
    with shop.app.database.connect() as one, shop.app.database.connect() as other:
        first, second = one.begin(), other.begin()
        for number in range(3):
            append(shop, one, f"one-{number}")
            append(shop, other, f"other-{number}")
        second.commit()
        first.commit()
    shop.number()
    assert delivered(shop) == ["one-0", "one-1", "one-2", "other-0", "other-1", "other-2"]


def test_who_waited_for_a_lock_comes_after_whom_it_waited_for(shop: Shop) -> None:
    shop.execute("CREATE TABLE amounts (name varchar(20) PRIMARY KEY, amount integer NOT NULL) ENGINE = InnoDB")
    shop.execute("INSERT INTO amounts VALUES ('a', 0)")
    change = text("UPDATE amounts SET amount = :amount WHERE name = 'a'")
    with shop.app.database.connect() as waited, shop.app.database.connect() as holder:
        first, second = waited.begin(), holder.begin()
        append(shop, waited, "elsewhere")
        holder.execute(change, {"amount": 1})
        append(shop, holder, "a is 1")
        second.commit()
        waited.execute(change, {"amount": 2})
        append(shop, waited, "a is 2")
        first.commit()
    shop.number()
    assert delivered(shop) == ["a is 1", "elsewhere", "a is 2"]


def test_a_sequencer_that_was_succeeded_numbers_nothing(shop: Shop) -> None:
    """[OUTBOX-6]."""
    sequencer = shop.app.processors.sequencer()
    shop.append(1)
    assert sequencer.number(5) == 1
    shop.append(2)
    assert sequencer.number(4) is None
    assert len(delivered(shop)) == 1
    with sequencer.leased() as lease, pytest.raises(LostLeaseError):
        sequencer.process_batch(lease)


def test_only_one_sequencer_holds_the_lease(shop: Shop) -> None:
    one, other = shop.app.processors.sequencer(), shop.app.processors.sequencer()
    with one.leased(), pytest.raises(LeaseConflictError), other.leased():
        pass
    with other.leased() as lease:
        assert lease.fencing_token > 0


def test_two_sequencers_at_once_give_every_message_one_position(shop: Shop) -> None:
    """[OUTBOX-6] Even without the lease: they lock the row with the last position."""
    stop = threading.Event()

    def keep_numbering() -> None:
        sequencer = shop.app.processors.sequencer()
        while not stop.is_set():
            sequencer.number(1)

    threads = [threading.Thread(target=keep_numbering) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for number in range(40):
            shop.append(number, number)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    shop.app.processors.sequencer().number(1)
    rows = shop.execute("SELECT position FROM holdfast_outbox ORDER BY position")
    assert [row["position"] for row in rows] == list(range(1, 81))


def test_a_long_transaction_does_not_overtake_whom_it_waited_for(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequencing, "_MOST_AT_ONCE", 3)
    with shop.app.database.connect() as waited:
        transaction = waited.begin()
        append(shop, waited, "elsewhere")
        with shop.app.database.begin() as many:
            append(shop, many, *(f"many-{number}" for number in range(5)))
        with shop.app.database.begin() as holder:
            append(shop, holder, "a is 1")
        append(shop, waited, "a is 2")
        transaction.commit()
    shop.number()
    assert delivered(shop) == [*(f"many-{number}" for number in range(5)), "a is 1", "elsewhere", "a is 2"]
