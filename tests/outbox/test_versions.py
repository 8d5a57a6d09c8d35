"""Versions: a new one runs beside the old one until it is promoted; rebuilding empties and replays in one go."""

from __future__ import annotations

import pytest

from holdfast.core.errors import ConfigurationError, Conflict, LeaseConflictError, NotFoundError
from holdfast.outbox.checkpoints import Role
from holdfast.outbox.context import ProcessorContext
from holdfast.outbox.message import Message
from tests.outbox.shops import Shop, write_effects


def roles(shop: Shop) -> dict[int, Role]:
    return {place.id.version: place.role for place in shop.app.processors.checkpoints.of("totals")}


def quiet(messages: list[Message]) -> None:
    """Do nothing."""


def test_a_new_version_runs_beside_the_old_one_until_it_is_promoted(shop: Shop) -> None:
    told: list[tuple[int, bool]] = []

    def note(messages: list[Message], context: ProcessorContext) -> None:
        told.extend((context.version, context.is_active) for _ in messages)

    shop.append(1, 2)
    shop.app.processor("totals", version=1)(note)
    shop.run("totals", 1)
    shop.app.processor("totals", version=2)(note)
    shop.run("totals", 2)
    assert told == [(1, True)] * 2 + [(2, False)] * 2
    assert roles(shop) == {1: Role.ACTIVE, 2: Role.BESIDE}
    assert shop.app.processors.by_hand.promote("totals", actor="anne") == 2
    assert roles(shop) == {1: Role.RETIRED, 2: Role.ACTIVE}
    shop.append(3)
    told.clear()
    with pytest.raises(ConfigurationError, match="is in use at version 2"):
        shop.app.processors.register()
    del shop.app.processors._processors[("totals", 1)]
    shop.run("totals", 2)
    assert told == [(2, True)]


def test_a_retired_version_delivers_no_more(shop: Shop) -> None:
    shop.app.processor("totals", version=1)(write_effects)
    shop.app.processor("totals", version=2)(quiet)
    shop.run("totals", 1)
    old = shop.app.processors.get("totals", 1)
    runner = shop.app.processors.runner(old, old.partition_ids[0])
    with runner.leased() as lease:
        shop.app.processors.by_hand.promote("totals", 2, actor="anne", force=True)
        shop.append(1)
        shop.number()
        with pytest.raises(Exception, match="not in charge"):
            runner.process_batch(lease)
    assert shop.effects() == []


def test_a_version_that_has_not_caught_up_is_not_promoted(shop: Shop) -> None:
    shop.append_each(1, 2, 3)
    shop.app.processor("totals", version=1)(quiet)
    shop.run("totals", 1)
    shop.app.processor("totals", version=2)(quiet)
    shop.app.processors.register()
    with pytest.raises(Conflict, match="has 3 messages before it"):
        shop.app.processors.by_hand.promote("totals", actor="anne")
    assert roles(shop) == {1: Role.ACTIVE, 2: Role.BESIDE}
    assert shop.app.processors.by_hand.promote("totals", actor="anne", force=True) == 2


def test_what_cannot_be_promoted_is_told(shop: Shop) -> None:
    shop.app.processor("totals")(quiet)
    shop.app.processors.register()
    by_hand = shop.app.processors.by_hand
    with pytest.raises(Conflict, match="No version of processor 'totals' runs beside"):
        by_hand.promote("totals", actor="anne")
    with pytest.raises(Conflict, match="is active"):
        by_hand.promote("totals", 1, actor="anne")
    with pytest.raises(NotFoundError, match="has no version 7"):
        by_hand.promote("totals", 7, actor="anne")
    with pytest.raises(NotFoundError, match="There is no processor 'other'"):
        by_hand.promote("other", actor="anne")


def test_another_partition_count_for_a_version_is_refused(shop: Shop) -> None:
    shop.app.processor("totals", partitions=2)(quiet)
    shop.app.processors.register()
    again = shop.another()
    again.app.processor("totals", partitions=3)(quiet)
    with pytest.raises(ConfigurationError, match="stored with 2 partitions, and 3 are declared"):
        again.app.processors.register()
    again.provider.dispose_all()


def test_another_order_for_a_version_is_refused(shop: Shop) -> None:
    shop.app.processor("totals")(quiet)
    shop.app.processors.register()
    again = shop.another()
    again.app.processor("totals", order="position")(quiet)
    with pytest.raises(ConfigurationError, match="stored with order='transaction'"):
        again.app.processors.register()
    again.provider.dispose_all()


def test_two_declarations_of_a_version_are_refused(shop: Shop) -> None:
    shop.app.processor("totals")(quiet)
    with pytest.raises(ConfigurationError, match="two processors 'totals' of version 1"):
        shop.app.processor("totals")(quiet)


def test_a_rebuild_empties_the_tables_and_replays_everything_once(shop: Shop) -> None:
    shop.append_each(1, 2, 3)
    shop.app.processor("totals", batch_size=2)(write_effects)
    shop.run()
    shop.execute("INSERT INTO effects VALUES ('wrong', 99)")
    by_hand = shop.app.processors.by_hand
    assert by_hand.start_rebuild("totals", ["effects"], actor="anne")
    assert shop.effects() == []
    assert not by_hand.rebuild_progress("totals").is_over
    shop.run()
    progress = by_hand.rebuild_progress("totals")
    assert (progress.done, progress.total, progress.is_over) == (3, 3, True)
    by_hand.end_rebuild("totals")
    assert sorted(shop.effects()) == [1, 2, 3]
    assert not by_hand.is_rebuilding("totals", 1)


def test_a_rebuild_that_was_cut_short_goes_on_without_emptying_again(shop: Shop) -> None:
    shop.append_each(1, 2, 3)
    shop.app.processor("totals", batch_size=1)(write_effects)
    shop.run()
    by_hand = shop.app.processors.by_hand
    by_hand.start_rebuild("totals", ["effects"], actor="anne")
    processor = shop.app.processors.get("totals")
    runner = shop.app.processors.runner(processor, processor.partition_ids[0])
    with runner.leased() as lease:
        runner.process_batch(lease)
    assert len(shop.effects()) == 1
    assert not by_hand.start_rebuild("totals", ["effects"], actor="anne")
    assert len(shop.effects()) == 1
    assert by_hand.rebuild_progress("totals").done == 1
    shop.run()
    assert sorted(shop.effects()) == [1, 2, 3]


def test_what_cannot_be_emptied_changes_nothing(shop: Shop) -> None:
    shop.append(1)
    shop.app.processor("totals")(write_effects)
    shop.run()
    by_hand = shop.app.processors.by_hand
    with pytest.raises(ConfigurationError, match="nowhere"):
        by_hand.start_rebuild("totals", ["effects", "nowhere"], actor="anne")
    with pytest.raises(ConfigurationError, match="table of Holdfast itself"):
        by_hand.start_rebuild("totals", ["holdfast_outbox"], actor="anne")
    assert shop.effects() == [1]
    assert shop.place().checkpoint is not None


def test_forgetting_needs_nobody_to_run_it(shop: Shop) -> None:
    shop.app.processor("totals")(quiet)
    shop.app.processors.register()
    processor = shop.app.processors.get("totals")
    by_hand = shop.app.processors.by_hand
    refused = pytest.raises(Conflict, match="is run by")
    with shop.app.processors.runner(processor, processor.partition_ids[0]).leased(), refused:
        by_hand.forget("totals", actor="anne")
    assert by_hand.forget("totals", actor="anne") == 1
    assert shop.app.processors.checkpoints.of("totals") == []


def test_a_stopped_processor_is_not_run(shop: Shop) -> None:
    shop.app.processor("totals")(quiet)
    shop.app.processors.register()
    shop.app.processors.by_hand.stop("totals", actor="anne", reason="maintenance")
    with pytest.raises(LeaseConflictError, match="maintenance"):
        shop.run()
