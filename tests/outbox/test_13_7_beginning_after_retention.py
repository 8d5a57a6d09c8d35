"""Where retention deleted messages, nobody begins at the beginning without naming the first one kept [OUTBOX-8]."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from sqlalchemy import text

from holdfast.core.errors import ConfigurationError, Conflict
from holdfast.outbox.housekeeping import prune
from holdfast.outbox.message import Checkpoint, Message
from holdfast.outbox.pruned import lock_pruned
from holdfast.outbox.schema import _count_pruned
from holdfast.records.database import changing
from tests.outbox.shops import Shop, write_effects

EVERYTHING = timedelta(seconds=-60)  # also what was appended just now


def quiet(messages: list[Message]) -> None:
    """Do nothing."""


def pruned(shop: Shop) -> int:
    return prune(shop.app.processors.engine, shop.app.processors.checkpoints, EVERYTHING)


@pytest.fixture
def pruned_shop(shop: Shop) -> Shop:
    """Three messages were handled and deleted, and a fourth is there."""
    shop.app.processor("totals")(write_effects)
    shop.append_each(1, 2, 3)
    shop.run()
    assert pruned(shop) == 3
    shop.append(4)
    shop.run()
    return shop


def first(shop: Shop) -> Checkpoint:
    processors = shop.app.processors
    processor = processors.get("totals")
    found = processors._reader(processor, processor.partition_ids[0]).first()
    assert found is not None
    return found


def test_13_7_a_rebuild_is_refused_and_nothing_is_emptied(pruned_shop: Shop) -> None:
    operator = pruned_shop.app.processors.operator
    told = rf"retention has deleted messages \(3 until .* UTC\), and the first message kept is {first(pruned_shop)}"
    with pytest.raises(Conflict, match=told):
        operator.start_rebuild("totals", ["effects"], actor="anne")
    with pytest.raises(Conflict, match="not 0:1"):
        operator.start_rebuild("totals", ["effects"], actor="anne", first_kept=Checkpoint(0, 1))
    assert sorted(pruned_shop.effects()) == [1, 2, 3, 4]
    assert not operator.is_rebuilding("totals", 1)


def test_13_7_a_rebuild_that_names_the_first_message_kept_begins_there(pruned_shop: Shop) -> None:
    operator = pruned_shop.app.processors.operator
    assert operator.start_rebuild("totals", ["effects"], actor="anne", first_kept=first(pruned_shop))
    pruned_shop.run()
    assert pruned_shop.effects() == [4]


def test_13_7_a_reset_to_the_beginning_is_refused(pruned_shop: Shop) -> None:
    operator, before = pruned_shop.app.processors.operator, pruned_shop.place().checkpoint
    with pytest.raises(Conflict, match="--first-kept"):
        operator.reset("totals", None, actor="anne")
    assert pruned_shop.place().checkpoint == before
    assert operator.reset("totals", None, actor="anne", first_kept=first(pruned_shop)) == 1
    assert pruned_shop.place().checkpoint is None


def test_13_7_a_new_processor_does_not_start_from_the_beginning(pruned_shop: Shop) -> None:
    pruned_shop.app.processor("late")(write_effects)
    with pytest.raises(ConfigurationError, match=f"or first_kept='{first(pruned_shop)}' to begin there"):
        pruned_shop.run("late")
    assert pruned_shop.app.processors.checkpoints.of("late") == []
    pruned_shop.app.processor("named", first_kept=str(first(pruned_shop)))(quiet)
    pruned_shop.app.processor("at-the-end", start_from="end")(quiet)
    assert pruned_shop.run("named") == 1
    assert pruned_shop.run("at-the-end") == 0


def test_13_7_a_checkpoint_before_the_first_message_kept_is_refused(pruned_shop: Shop) -> None:
    kept = first(pruned_shop)
    pruned_shop.app.processor("early", start_from=Checkpoint(0, 1))(quiet)
    with pytest.raises(ConfigurationError, match=f"starts from 0:1, but not .* or first_kept='{kept}' to begin there"):
        pruned_shop.run("early")
    assert pruned_shop.app.processors.checkpoints.of("early") == []
    pruned_shop.app.processor("named", start_from=Checkpoint(0, 1), first_kept=kept)(quiet)
    pruned_shop.app.processor("behind", start_from=kept)(quiet)
    assert pruned_shop.run("named") == 1
    assert pruned_shop.run("behind") == 0


def test_13_7_a_new_version_does_not_start_from_the_beginning(pruned_shop: Shop) -> None:
    pruned_shop.app.processor("totals", version=2)(quiet)
    with pytest.raises(ConfigurationError, match="Processor 'totals' version 2 starts from the beginning, but not"):
        pruned_shop.run("totals", 2)
    pruned_shop.append(5)
    assert pruned_shop.run("totals", 1) == 1


def test_13_7_where_no_message_is_kept_there_is_nothing_to_begin_with(pruned_shop: Shop) -> None:
    assert pruned(pruned_shop) == 1
    with pytest.raises(Conflict, match="none is kept"):
        pruned_shop.app.processors.operator.start_rebuild("totals", ["effects"], actor="anne")
    pruned_shop.app.processor("late")(quiet)
    with pytest.raises(ConfigurationError, match="Declare start_from='end'; nothing was registered"):
        pruned_shop.run("late")


def test_13_7_where_nothing_was_deleted_nothing_is_asked(shop: Shop) -> None:
    shop.append(1)
    shop.app.processor("totals", first_kept="0:99")(write_effects)
    shop.run()
    assert deleted_of(shop) is None
    assert shop.app.processors.operator.start_rebuild("totals", ["effects"], actor="anne")


def deleted_of(shop: Shop) -> object:
    with changing(shop.app.processors.engine) as connection:
        return lock_pruned(connection)


def test_13_7_what_an_earlier_release_deleted_is_seen_when_it_is_upgraded(pruned_shop: Shop) -> None:
    with changing(pruned_shop.app.processors.engine) as connection:
        connection.execute(text("DROP TABLE holdfast_outbox_pruned"))
        _count_pruned(connection)
    with pytest.raises(Conflict, match="messages before the first kept one were deleted, or never committed"):
        pruned_shop.app.processors.operator.start_rebuild("totals", ["effects"], actor="anne")
    assert pruned(pruned_shop) == 1
    with pytest.raises(Conflict, match="none is kept"):
        pruned_shop.app.processors.operator.start_rebuild("totals", ["effects"], actor="anne")


def test_13_7_pruning_waits_for_a_rebuild_that_begins(shop: Shop) -> None:
    """Who begins has looked whether everything is there, so nothing is deleted until its checkpoint is put back."""
    shop.append(1)
    shop.app.processor("totals")(write_effects)
    shop.run()
    deleted: list[int] = []
    processors = shop.app.processors
    with changing(processors.engine) as connection:
        assert lock_pruned(connection) is None
        other = threading.Thread(target=lambda: deleted.append(pruned(shop)))
        other.start()
        connection.execute(
            text(
                "UPDATE holdfast_processor_checkpoints "
                "SET last_processed_transaction_id = NULL, last_processed_position = NULL"
            )
        )
    other.join()
    assert deleted == [0]


def test_13_7_a_first_message_that_is_no_place_is_refused(sqlite_shop: Shop) -> None:
    with pytest.raises(ConfigurationError, match="Processor 'totals': first_kept: 'first' is not a checkpoint"):
        sqlite_shop.app.processor("totals", first_kept="first")
