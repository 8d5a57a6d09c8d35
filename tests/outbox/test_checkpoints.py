"""The checkpoint store [OUTBOX-2]: four results and "not in charge", compared as pairs, the same on every database."""

from __future__ import annotations

import pytest
from sqlalchemy import event

from holdfast.outbox.message import Checkpoint
from holdfast.outbox.store import CheckpointResult, CheckpointStore, Move, PartitionId
from tests.outbox.shops import Shop

ONE = PartitionId("totals", 1, 0)


class Stored:
    """A checkpoint store, each change in a transaction of its own."""

    def __init__(self, shop: Shop) -> None:
        self.store = CheckpointStore(shop.app.database)
        self.engine = shop.app.database

    def __call__(
        self,
        to: tuple[int, int],
        expected: tuple[int, int] | None,
        partition: PartitionId = ONE,
        token: int | None = None,
    ) -> CheckpointResult:
        move = Move(None if expected is None else Checkpoint(*expected), Checkpoint(*to), to[1])
        with self.engine.begin() as connection:
            return self.store.store(connection, partition, move, token=token)

    def at(self, partition: PartitionId = ONE) -> Checkpoint | None:
        place = self.store.get(partition)
        assert place is not None
        return place.checkpoint


@pytest.fixture
def stored(shop: Shop) -> Stored:
    return Stored(shop)


def test_the_first_checkpoint_is_stored(stored: Stored) -> None:
    assert stored((5, 1), None) is CheckpointResult.STORED
    assert stored.at() == Checkpoint(5, 1)


def test_the_expected_one_is_moved(stored: Stored) -> None:
    stored((5, 1), None)
    assert stored((5, 9), (5, 1)) is CheckpointResult.STORED
    assert stored((6, 2), (5, 9)) is CheckpointResult.STORED
    assert stored.at() == Checkpoint(6, 2)


def test_what_is_there_already_is_ignored(stored: Stored) -> None:
    stored((5, 1), None)
    stored((6, 2), (5, 1))
    assert stored((6, 2), (5, 1)) is CheckpointResult.IGNORED
    assert stored((6, 2), None) is CheckpointResult.IGNORED


def test_a_stored_one_that_is_further_is_ahead(stored: Stored) -> None:
    stored((5, 1), None)
    stored((9, 9), (5, 1))
    assert stored((6, 2), (5, 1)) is CheckpointResult.AHEAD
    assert stored((6, 2), None) is CheckpointResult.AHEAD
    assert stored.at() == Checkpoint(9, 9)


def test_a_stored_one_that_is_not_as_far_is_behind(stored: Stored) -> None:
    stored((5, 1), None)
    assert stored((9, 9), (7, 7)) is CheckpointResult.BEHIND
    assert stored((9, 9), (5, 2)) is CheckpointResult.BEHIND
    assert stored.at() == Checkpoint(5, 1)


def test_nothing_stored_is_behind_what_is_expected(stored: Stored) -> None:
    assert stored((9, 9), (7, 7)) is CheckpointResult.BEHIND


def test_checkpoints_are_compared_as_pairs(stored: Stored) -> None:
    stored((5, 100), None)
    stored((6, 2), (5, 100))  # a later transaction, a lower position
    assert stored.at() == Checkpoint(6, 2)
    assert stored((7, 1), (5, 100)) is CheckpointResult.AHEAD
    assert stored((6, 50), (6, 1)) is CheckpointResult.AHEAD
    assert stored((6, 50), (7, 0)) is CheckpointResult.BEHIND


def test_an_older_position_is_accepted_when_the_expected_one_matches(stored: Stored) -> None:
    stored((9, 9), None)
    assert stored((5, 1), (9, 9)) is CheckpointResult.STORED
    assert stored.at() == Checkpoint(5, 1)


def test_versions_and_partitions_progress_independently(stored: Stored) -> None:
    others = [PartitionId("totals", 2, 0), PartitionId("totals", 1, 1), PartitionId("others", 1, 0)]
    stored((5, 1), None)
    for number, partition in enumerate(others, 7):
        assert stored((number, number), None, partition) is CheckpointResult.STORED
    assert stored((6, 1), (5, 1)) is CheckpointResult.STORED
    assert [stored.at(partition) for partition in others] == [Checkpoint(n, n) for n in (7, 8, 9)]


def test_a_token_that_does_not_hold_stores_nothing(stored: Stored) -> None:
    stored((5, 1), None)
    assert stored.store.take_over(ONE, 3, 60) is not None
    assert stored((6, 1), (5, 1), token=2) is CheckpointResult.NOT_IN_CHARGE
    assert stored((6, 1), (5, 1), token=3) is CheckpointResult.STORED
    assert stored.store.take_over(ONE, 2, 60) is None
    assert stored((7, 1), (6, 1), token=2) is CheckpointResult.NOT_IN_CHARGE
    assert stored.at() == Checkpoint(6, 1)


def test_a_stopped_processor_stores_nothing(stored: Stored) -> None:
    stored((5, 1), None)
    stored.store.take_over(ONE, 1, 60)
    assert stored.store.stop(ONE, 1, "enough")
    assert stored((6, 1), (5, 1), token=1) is CheckpointResult.NOT_IN_CHARGE


def test_an_unregistered_processor_stores_nothing_under_a_token(stored: Stored) -> None:
    assert stored((6, 1), None, token=1) is CheckpointResult.NOT_IN_CHARGE


@pytest.mark.component("postgres18")
def test_a_checkpoint_is_one_round_trip_on_postgresql(postgres_shop: Shop) -> None:
    stored = Stored(postgres_shop)
    said: list[str] = []
    event.listen(stored.engine, "before_cursor_execute", lambda *arguments: said.append(arguments[2]))
    assert stored((5, 1), None) is CheckpointResult.STORED
    assert stored((6, 1), (5, 1)) is CheckpointResult.STORED
    assert len(said) == 2
    assert all("holdfast_store_checkpoint" in sql for sql in said)
